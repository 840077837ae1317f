/* JPEG files: what the header says; and RGB pixels of those that are as most are, to the bit what TurboJPEG makes of
   them, in about two thirds of its time.

   Comes in: a whole file. For pixels: baseline, 8 bits, Y, Cb and Cr in one scan, chroma as fine as luma, half as fine
   along the rows, or both ways; with AVX2. Goes out: [h, w, 3], of which only a part must be made. Whatever is rare, odd
   or broken is left to others: this never says what is wrong. All codes are read, whatever the part is, so a file that
   is cut short is never taken for a whole one.

   A row of blocks at a time, so that all stays in the processor's cache: codes become coefficients here, coefficients
   samples, and samples pixels in _samples.c. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "_samples.h"

/* ------------------------------------------------------------------------------------------------------ the header */

enum { SOF0 = 0xC0, DHT = 0xC4, RST0 = 0xD0, SOI = 0xD8, EOI, SOS, DQT, DRI = 0xDD };
enum { APP0 = 0xE0, APP1 = 0xE1, APP14 = 0xEE, APP15 = 0xEF, COM = 0xFE };
enum { MAX_SEGMENTS = 1000, LONGEST = 65535 }; /* pixels of a side */

/* What segments are, by their markers; jpeg.py has the same. */
static int is_frame(int marker) {
    return marker >= SOF0 && marker <= 0xCF && marker != DHT && marker != 0xC8 && marker != 0xCC;
}

static int is_alone(int marker) { return marker == 0x01 || (marker >= RST0 && marker <= SOI); }

INLINE int word_at(const uint8_t *data) { return data[0] << 8 | data[1]; }

/* Goes from segment to segment. */
typedef struct {
    const uint8_t *data;
    Py_ssize_t size, position;
    int num_segments;
} Walk;

typedef struct {
    int marker;
    const uint8_t *data;
    Py_ssize_t length; /* -1 where no more segments come: SOS, EOI, the end of the file (0), or a file that is odd (-1) */
} Segment;

static Segment next_segment(Walk *walk) {
    while (walk->position + 4 <= walk->size) {
        const uint8_t *at = walk->data + walk->position;
        const int marker = at[1], length = word_at(at + 2);
        if (at[0] != 0xFF || walk->num_segments++ == MAX_SEGMENTS) return (Segment){-1, NULL, -1};
        if (marker == SOS || marker == EOI) return (Segment){marker, at + 2, -1};
        if (marker == 0xFF || is_alone(marker)) {
            walk->position += marker == 0xFF ? 1 : 2;
            continue;
        }
        walk->position += 2 + length;
        if (length < 2 || walk->position > walk->size) return (Segment){-1, NULL, -1};
        return (Segment){marker, at + 4, length - 2};
    }
    return (Segment){0, NULL, -1};
}

/* What jpeg.py finds in a header, for those that are as most are. Others are None: it finds out itself what is odd. */
PyObject *sds_scan_jpeg(PyObject *Py_UNUSED(module), PyObject *given) {
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(given, &bytes, &size) < 0) return NULL;
    Walk walk = {(const uint8_t *)bytes, size, 2, 0};
    Segment frame = {0}, exif = {0}, found;
    while ((found = next_segment(&walk)).length >= 0) {
        if (is_frame(found.marker) && found.length >= 6 && !frame.data) {
            frame = found;
        } else if (found.marker == APP1 && found.length >= 6 && memcmp(found.data, "Exif\0\0", 6) == 0) {
            if (exif.data) Py_RETURN_NONE;
            exif = found;
        }
    }
    if (found.marker < 0 || !frame.data) Py_RETURN_NONE;
    return Py_BuildValue("iiiiNy#", word_at(frame.data + 1), word_at(frame.data + 3), frame.data[5], frame.data[0],
                         PyBool_FromLong(frame.marker % 4 == 2), (const char *)exif.data, exif.length);
}

#ifndef VECTORS
PyObject *sds_decode_jpeg(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args)) { Py_RETURN_FALSE; }
#else

/* ------------------------------------------------------------------------------------------------------ its tables */

enum { LOOK = 11 }; /* bits that are looked up at once: what 12 would tell more, they lose by their size */

/* What the next bits mean. */
typedef struct {
    uint32_t steps[1 << LOOK]; /* one or two coefficients, and whether the block ends then; 0 where that takes longer */
    uint16_t codes[1 << LOOK]; /* a symbol << 8 | bits of its code; 0 where that is longer */
    uint8_t symbols[256];
    int32_t ends[17];    /* of longer codes, by their lengths: one past the last one, and zeros up to 16 bits */
    int32_t offsets[17]; /* where their symbols begin, less their first code */
} Codes;

/* A step: of how many bits, how far to go to the first coefficient and to the second, and what they are. Where there is
   only one, it is both. */
enum { END = 1 << 4 };
#define STEP_OF(bits, first, second, one, other)                                                                       \
    ((uint32_t)(bits) | (uint32_t)(first) << 5 | (uint32_t)(second) << 9 | (uint32_t)(uint8_t)(one) << 16 |            \
     (uint32_t)(uint8_t)(other) << 24)
INLINE int bits_of(uint32_t step) { return step & 15; }
INLINE int first_of(uint32_t step) { return step >> 5 & 15; }
INLINE int second_of(uint32_t step) { return step >> 9 & 31; }
INLINE int one_of(uint32_t step) { return (int8_t)(step >> 16); }
INLINE int other_of(uint32_t step) { return (int8_t)(step >> 24); }

typedef struct {
    int width, height;
    int across, down;         /* samples of luma for each of chroma, along a row and along a column */
    int num_across, num_down; /* groups of blocks in a row, and in a column: all that belong to a block of chroma */
    int interval;             /* groups between two restarts; 0 is none */
    int of_factors[3], of_dc[3], of_ac[3]; /* tables of Y, Cb and Cr */
    int has_factors[4], has_dc[2], has_ac[2];
    uint16_t factors[4][64];
    const uint8_t *codes, *end; /* of the scan, and of the file */
    Codes dc[2], ac[2]; /* at the end: they are not cleared in vain */
} File;

/* Places of coefficients in the order in which they are coded; a wrong file may go 15 further. */
static const uint8_t natural[64 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,
    6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31,
    39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

/* What `size` bits mean: those that begin with 0 are negative. No processor guesses which, so nothing is asked here. */
INLINE int extend(int bits, int size) { return bits - (((bits >> (size - 1)) - 1) & ((1 << size) - 1)); }

/* Makes two steps one, with the end behind them, as far as there are bits for it. */
static void join_steps(Codes *codes) {
    uint32_t alone[1 << LOOK];
    memcpy(alone, codes->steps, sizeof alone);
    for (uint32_t k = 0; k < 1 << LOOK; k++) {
        uint32_t step = alone[k];
        for (int i = 0; i < 2 && step && !(step & END); i++) {
            const uint32_t next = alone[(k << bits_of(step)) & ((1 << LOOK) - 1)];
            const int bits = bits_of(step) + bits_of(next), first = first_of(step);
            if (!next || bits > LOOK) break;
            if (next & END) step = (step & ~15u) | (uint32_t)bits | END;
            else if (i == 0) step = STEP_OF(bits, first, first + 1 + first_of(next), one_of(step), one_of(next));
            else break;
        }
        codes->steps[k] = step;
    }
}

/* Tables from how many codes there are of each length, and their symbols; -1 if that cannot be. */
static int make_codes(Codes *codes, const uint8_t *counts, const uint8_t *symbols, int is_dc) {
    int code = 0, at = 0;
    memset(codes, 0, sizeof *codes);
    for (int length = 1; length <= 16; length++, code <<= 1) {
        codes->offsets[length] = at - code;
        for (int i = 0; i < counts[length - 1]; i++, code++, at++) {
            const int symbol = codes->symbols[at] = symbols[at], run = symbol >> 4, size = symbol & 15;
            if (code >= (1 << length) - 1 || (is_dc && symbol > 11)) return -1; /* only ones are no code */
            if (length > LOOK) continue;
            const int spare = LOOK - length, first = code << spare;
            for (int k = first; k < first + (1 << spare); k++) codes->codes[k] = (uint16_t)(symbol << 8 | length);
            if (is_dc || size > 7 || size > spare || (size == 0 && run == 15)) continue;
            for (int k = 0; k < 1 << spare; k++) {
                const int value = size ? extend(k >> (spare - size), size) : 0, skip = size ? run : 0;
                codes->steps[first + k] = STEP_OF(length + size, skip, skip, value, value) | (size ? 0 : END);
            }
        }
        codes->ends[length] = code << (16 - length);
    }
    if (!is_dc) join_steps(codes);
    return 0;
}

static int read_codes(File *file, Segment found) {
    const uint8_t *at = found.data, *end = at + found.length;
    while (at < end) {
        if (end - at < 17 || at[0] & ~0x11) return -1;
        int num = 0;
        for (int i = 1; i <= 16; i++) num += at[i];
        if (num > 256 || end - at < 17 + num) return -1;
        const int is_dc = !(at[0] & 0x10), which = at[0] & 1;
        if (make_codes(is_dc ? &file->dc[which] : &file->ac[which], at + 1, at + 17, is_dc) < 0) return -1;
        *(is_dc ? &file->has_dc[which] : &file->has_ac[which]) = 1;
        at += 17 + num;
    }
    return 0;
}

static int read_factors(File *file, Segment found) {
    if (found.length % 65) return -1;
    for (const uint8_t *at = found.data; at < found.data + found.length; at += 65) {
        if (at[0] > 3) return -1; /* of 16 bits, or no such table */
        for (int k = 0; k < 64; k++) file->factors[at[0]][natural[k]] = at[k + 1];
        file->has_factors[at[0]] = 1;
    }
    return 0;
}

/* Sizes and components: three, luma first, with samples in one of the usual ways. */
static int read_frame(File *file, Segment found) {
    const uint8_t *data = found.data;
    if (file->width || found.length != 15 || data[0] != 8 || data[5] != 3) return -1;
    file->height = word_at(data + 1), file->width = word_at(data + 3);
    file->across = data[7] >> 4, file->down = data[7] & 15;
    if (file->height < 16 || file->width < 16 || data[10] != 0x11 || data[13] != 0x11) return -1;
    if (file->across < 1 || file->across > 2 || file->down < 1 || file->down > file->across) return -1;
    for (int i = 0; i < 3; i++) {
        if (data[6 + 3 * i] != i + 1 || data[8 + 3 * i] > 3) return -1;
        file->of_factors[i] = data[8 + 3 * i];
    }
    file->num_across = (file->width + 8 * file->across - 1) / (8 * file->across);
    file->num_down = (file->height + 8 * file->down - 1) / (8 * file->down);
    return 0;
}

/* The start of the scan: all components, all coefficients, and tables that are there. */
static int read_scan(File *file, const uint8_t *at, const uint8_t *end) {
    if (!file->width || end - at < 12 || word_at(at) != 12 || at[2] != 3) return -1;
    if (at[9] != 0 || at[10] != 63 || at[11] != 0) return -1;
    for (int i = 0; i < 3; i++) {
        const int dc = at[4 + 2 * i] >> 4, ac = at[4 + 2 * i] & 15;
        if (at[3 + 2 * i] != i + 1 || dc > 1 || ac > 1 || !file->has_dc[dc] || !file->has_ac[ac]) return -1;
        if (!file->has_factors[file->of_factors[i]]) return -1;
        file->of_dc[i] = dc, file->of_ac[i] = ac;
    }
    file->codes = at + 12, file->end = end;
    return 0;
}

static int read_interval(File *file, Segment found) {
    if (found.length != 2) return -1;
    file->interval = word_at(found.data);
    return 0;
}

/* What Adobe says of three components: that they are what they are without its word, Y, Cb and Cr. */
static int read_adobe(Segment found) {
    return found.length < 12 || memcmp(found.data, "Adobe", 5) != 0 || found.data[11] == 1 ? 0 : -1;
}

static int read_segment(File *file, Segment found) {
    switch (found.marker) {
    case SOF0: return read_frame(file, found);
    case DHT: return read_codes(file, found);
    case DQT: return read_factors(file, found);
    case DRI: return read_interval(file, found);
    case APP14: return read_adobe(found);
    default: return found.marker == COM || (found.marker >= APP0 && found.marker <= APP15) ? 0 : -1;
    }
}

/* All that comes before the codes; -1 if this file is not of the usual kind. */
static int read_header(File *file, const uint8_t *data, Py_ssize_t size) {
    Walk walk = {data, size, 2, 0};
    Segment found;
    while ((found = next_segment(&walk)).length >= 0)
        if (read_segment(file, found) < 0) return -1;
    return found.marker == SOS ? read_scan(file, found.data, data + size) : -1;
}

/* ------------------------------------------------------------------------------------------- codes -> coefficients */

/* Bits of codes. */
typedef struct {
    uint64_t bits; /* the next ones, from the highest down */
    int num_bits;  /* that are surely among them */
    const uint8_t *next, *end;
} Reader;

/* A scan, up to one of its restarts at a time. */
typedef struct {
    const uint8_t *from, *end;
    uint8_t *codes; /* memory for them, without the zeros that follow each 0xFF in a file, and for SLACK more bytes */
    int marker;     /* that came after them */
    Reader reader;
} Scan;

/* Zeros after the last code. A wrong file may read beyond: by a group, which is 6 blocks of at most 64 * 31 bits. */
enum { SLACK = 2048 };

/* Has the reader begin with what comes up to the next marker; -1 if the file ends before. */
static int read_on(Scan *scan) {
    uint8_t *to = scan->codes;
    for (;;) {
        const uint8_t *mark = memchr(scan->from, 0xFF, scan->end - scan->from);
        if (!mark || mark + 1 == scan->end) return -1;
        const Py_ssize_t length = mark + 1 - scan->from;
        memcpy(to, scan->from, length);
        to += length, scan->from = mark + 2;
        if (mark[1] == 0) continue;
        scan->marker = mark[1], to--;
        memset(to, 0, SLACK);
        scan->reader = (Reader){0, 0, scan->codes, to};
        return 0;
    }
}

/* How many bytes are left after those that bits have been taken from; negative, if bits were that are not there. */
INLINE Py_ssize_t num_left(const Reader *reader) { return reader->end - (reader->next - (reader->num_bits >> 3)); }

/* Has at least 56 bits. */
FAST INLINE void refill(Reader *reader) {
    uint64_t more;
    memcpy(&more, reader->next, sizeof more);
    reader->bits |= __builtin_bswap64(more) >> reader->num_bits;
    reader->next += (63 - reader->num_bits) >> 3;
    reader->num_bits |= 56;
}

FAST INLINE int take(Reader *reader, int num) {
    const int found = (int)(reader->bits >> 1 >> (63 - num));
    reader->bits <<= num, reader->num_bits -= num;
    return found;
}

/* The symbol that comes next, -1 if the bits are no code. */
FAST INLINE int take_symbol(Reader *reader, const Codes *codes) {
    const int known = codes->codes[reader->bits >> (64 - LOOK)], ahead = (int)(reader->bits >> 48);
    if (known) {
        take(reader, known & 255);
        return known >> 8;
    }
    for (int length = LOOK + 1; length <= 16; length++)
        if (ahead < codes->ends[length]) return codes->symbols[(take(reader, length) + codes->offsets[length]) & 255];
    return -1;
}

/* One block's coefficients, where all is 0; -1 if there cannot be such a block. `dc` is the last block's first one. */
FAST INLINE int read_block(Reader *given, const Codes *of_dc, const Codes *of_ac, unsigned *dc, int16_t *block) {
    Reader reader = *given; /* in the processor's registers */
    refill(&reader);
    int size = take_symbol(&reader, of_dc), k = 1;
    if (size < 0) return -1;
    if (size) *dc += (unsigned)extend(take(&reader, size), size);
    block[0] = (int16_t)*dc;
    while (k < 64) {
        refill(&reader);
        for (int i = 0; i < 2; i++) { /* there are bits enough for two steps, and then for the longest code */
            const uint32_t step = of_ac->steps[reader.bits >> (64 - LOOK)];
            const int second = k + second_of(step);
            if (step == 0 || second >= 63) goto one_code; /* what seems to follow the last one is the next block's */
            block[natural[k + first_of(step)]] = (int16_t)one_of(step);
            block[natural[second]] = (int16_t)other_of(step);
            k = second + 1;
            take(&reader, bits_of(step));
            if (step & END) goto done;
        }
        continue;
    one_code:;
        const int symbol = take_symbol(&reader, of_ac);
        if (symbol < 0) return -1;
        size = symbol & 15, k += symbol >> 4;
        if (size) block[natural[k]] = (int16_t)extend(take(&reader, size), size);
        else if (symbol != 0xF0) goto done; /* the rest is 0; F0 is 16 zeros, and more to come */
        k++;
    }
    if (k > 64) return -1;
done:
    *given = reader;
    return 0;
}

/* ------------------------------------------------------------------------------------------------------- all of it */

enum { MOST = 6 }; /* blocks in a group */

/* Which component the i-th block of a group of num is of: the last two are Cb and Cr. */
INLINE int component_of(int i, int num) { return i < num - 2 ? 0 : i - num + 3; }

FAST INLINE int read_group(Reader *reader, const File *file, unsigned dc[3], int16_t blocks[MOST][64], int num) {
    memset(blocks, 0, num * sizeof blocks[0]);
    for (int i = 0; i < num; i++) {
        const int c = component_of(i, num);
        if (read_block(reader, &file->dc[file->of_dc[c]], &file->ac[file->of_ac[c]], &dc[c], blocks[i]) < 0) return -1;
    }
    return num_left(reader) < 0 ? -1 : 0;
}

/* The samples of the group that is the x-th of the y-th row. */
FAST INLINE void make_group(const File *file, const Rows *rows, int16_t blocks[MOST][64], int x, int y, int across,
                            int down) {
    const int num = across * down + 2;
    Block found[MOST];
    for (int i = 0; i < num; i++) {
        const int c = component_of(i, num);
        uint8_t *samples = c ? row_of(rows, c, 8 * y) + 8 * x
                             : row_of(rows, 0, 8 * (down * y + i / across)) + 8 * (across * x + i % across);
        found[i] = (Block){blocks[i], file->factors[file->of_factors[c]], samples, rows->strides[c]};
    }
    for (int i = 0; i < num; i += 2) make_samples(&found[i], &found[i + 1 < num ? i + 1 : i]);
}

/* Before the first sample of chroma comes the same once more, and after the last one: they are blended with it. */
static void widen(const File *file, const Rows *rows, int y) {
    const int last = (file->width - 1) / file->across;
    for (int i = 0; i < 16; i++) {
        uint8_t *row = row_of(rows, 1 + i / 8, 8 * y + i % 8);
        row[-1] = row[0], row[last + 1] = row[last];
    }
}

/* All that is wanted of the picture; -1 if the codes are not as they should be. */
FAST INLINE int decode_by(Scan *scan, const File *file, const Rows *rows, const Picture *picture, int across, int down) {
    const int num = across * down + 2, high = 8 * down;
    /* groups with samples that are blended into what is wanted: one of chroma more on each side, and two rows */
    const int before = picture->left / across - 1, after = (picture->right - 1) / across + 1;
    const int first = before < 0 ? 0 : before / 8, last = after / 8;
    int16_t blocks[MOST][64];
    unsigned dc[3] = {0};
    int num_restarts = 0, left = file->interval, done = 0;
    for (int y = 0; y < file->num_down; y++) {
        const int is_wanted = y * high < picture->bottom + 2 && (y + 1) * high > picture->top - 2;
        for (int x = 0; x < file->num_across; x++, left--) {
            if (file->interval && left == 0) {
                if (num_left(&scan->reader) || scan->marker != RST0 + num_restarts++ % 8 || read_on(scan) < 0) return -1;
                memset(dc, 0, sizeof dc);
                left = file->interval;
            }
            if (read_group(&scan->reader, file, dc, blocks, num) < 0) return -1;
            if (is_wanted && x >= first && x <= last) make_group(file, rows, blocks, x, y, across, down);
        }
        widen(file, rows, y);
        /* the last row of pixels has to wait for chroma of the row below it */
        const int ready = y + 1 == file->num_down ? file->height : (y + 1) * high - (down - 1);
        make_rows(rows, picture, done, ready, across, down);
        done = ready;
    }
    return num_left(&scan->reader) || scan->marker != EOI ? -1 : 0;
}

FAST static int decode_scan(Scan *scan, const File *file, const Rows *rows, const Picture *picture) {
    if (file->across == 1) return decode_by(scan, file, rows, picture, 1, 1); /* constants, compiled one by one */
    if (file->down == 1) return decode_by(scan, file, rows, picture, 2, 1);
    return decode_by(scan, file, rows, picture, 2, 2);
}

/* 1 if all that is wanted was made, 0 if the file is for others, -1 if there is no memory. */
static int decode_file(const uint8_t *data, Py_ssize_t size, const Picture *picture) {
    int found = -1;
    uint8_t *memory = NULL;
    File *file = PyMem_RawMalloc(sizeof *file);
    if (!file) return -1;
    memset(file, 0, offsetof(File, dc));
    if (read_header(file, data, size) < 0 || file->height != picture->height || file->width != picture->width) {
        found = 0;
    } else { /* two rows of groups: chroma is blended with the rows above and below */
        const int high[3] = {16 * file->down, 16, 16};
        const Py_ssize_t chroma = 8 * file->num_across + 2 * MARGIN, luma = 8 * file->num_across * file->across + 2 * MARGIN;
        const Py_ssize_t num_luma = luma * high[0], num_chroma = chroma * 16;
        memory = PyMem_RawMalloc(num_luma + 2 * num_chroma + (file->end - file->codes) + SLACK);
        if (memory) {
            uint8_t *first = memory + MARGIN, *codes = memory + num_luma + 2 * num_chroma;
            const Rows rows = {{first, first + num_luma, first + num_luma + num_chroma}, {luma, chroma, chroma},
                               {high[0], high[1], high[2]}};
            Scan scan = {.from = file->codes, .end = file->end, .codes = codes};
            found = read_on(&scan) == 0 && decode_scan(&scan, file, &rows, picture) == 0;
        }
    }
    PyMem_RawFree(memory);
    PyMem_RawFree(file);
    return found;
}

PyObject *sds_decode_jpeg(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *data;
    Py_ssize_t size;
    PyObject *given;
    Py_buffer result;
    Picture picture;
    int found = 0;
    int height, width; /* of the part */
    if (!PyArg_ParseTuple(args, "y#O(iiii)", &data, &size, &given, &picture.top, &picture.left, &height, &width))
        return NULL;
    if (PyObject_GetBuffer(given, &result, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE) < 0) return NULL;
    const Py_ssize_t *shape = result.shape;
    if (result.ndim != 3 || strcmp(result.format, "B") || shape[2] != 3 || picture.top < 0 || picture.left < 0 ||
        height < 1 || width < 1 || height > shape[0] - picture.top || width > shape[1] - picture.left) {
        PyErr_SetString(PyExc_ValueError, "pixels are uint8 [h, w, 3], and the part (top, left, height, width) of them");
    } else if (has_vectors() && shape[0] <= LONGEST && shape[1] <= LONGEST) {
        picture.pixels = result.buf, picture.height = (int)shape[0], picture.width = (int)shape[1];
        picture.bottom = picture.top + height, picture.right = picture.left + width;
        Py_BEGIN_ALLOW_THREADS
        found = decode_file((const uint8_t *)data, size, &picture);
        Py_END_ALLOW_THREADS
        if (found < 0) PyErr_NoMemory();
    }
    PyBuffer_Release(&result);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(found);
}
#endif
