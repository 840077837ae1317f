/* JPEG files as most are -> RGB pixels, to the bit what TurboJPEG makes of them, in less time (about two thirds).

   Comes in: a whole file: baseline, 8 bits, Y, Cb and Cr in one scan, chroma as fine as luma, half as fine along the
   rows, or both ways; and a processor with AVX2. Goes out: [h, w, 3], of which only a part must be made. Whatever is
   rare, odd or broken is left to others: this never says what is wrong. All codes are read, whatever the part is, so a
   file that is cut short is never taken for a whole one.

   A row of blocks at a time, so that what is made is still near when it is used: codes become coefficients here,
   coefficients samples, and samples pixels in _samples.c. */

#include "_native.h" /* first, since Python's header must be */
#include "_header.h"

#include <string.h>

int sds_fill_jpeg(PyObject *module) {
    return PyModule_AddObject(module, "DECODES", PyBool_FromLong(has_vectors()));
}

#ifndef VECTORS
PyObject *sds_decode_jpeg(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args)) { Py_RETURN_FALSE; }
#else

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
        if (read_block(reader, file->of_dc[c], file->of_ac[c], &dc[c], blocks[i]) < 0) return -1;
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
FAST INLINE int decode_by(Scan *scan, const File *file, const Rows *rows, const Picture *picture, int across,
                          int down) {
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
                const int is_next = scan->marker == RST0 + num_restarts++ % 8;
                if (num_left(&scan->reader) || !is_next || read_on(scan) < 0) return -1;
                memset(dc, 0, sizeof dc);
                left = file->interval;
            }
            if (read_group(&scan->reader, file, dc, blocks, num) < 0) return -1;
            if (is_wanted && x >= first && x <= last) make_group(file, rows, blocks, x, y, across, down);
        }
        if (across > 1 && is_wanted) widen(file, rows, y);
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

/* Memory for samples: two rows of groups, since chroma is blended with the rows above and below. */
static uint8_t *make_memory(const File *file, Rows *rows) {
    const ptrdiff_t chroma = 8 * file->num_across + 2 * MARGIN, luma = 8 * file->num_across * file->across + 2 * MARGIN;
    const ptrdiff_t num_luma = luma * 16 * file->down, num_chroma = chroma * 16;
    uint8_t *memory = PyMem_RawMalloc(num_luma + 2 * num_chroma);
    if (!memory) return NULL;
    uint8_t *first = memory + MARGIN;
    *rows = (Rows){{first, first + num_luma, first + num_luma + num_chroma}, {luma, chroma, chroma},
                   {16 * file->down, 16, 16}};
    return memory;
}

/* Whether all that is wanted was made; otherwise the file is for others, or there is too little memory. */
static int decode_file(const uint8_t *data, Py_ssize_t size, const Picture *picture) {
    int found = 0;
    uint8_t *memory = NULL, *codes = NULL;
    Rows rows;
    File *file = PyMem_RawMalloc(sizeof *file);
    if (!file) return 0;
    memset(file, 0, offsetof(File, made));
    if (read_header(file, data, size) == 0 && file->height == picture->height && file->width == picture->width) {
        memory = make_memory(file, &rows);
        codes = PyMem_RawMalloc(file->end - file->begin + SLACK);
        Scan scan = {.from = file->begin, .end = file->end, .codes = codes};
        found = memory && codes && read_on(&scan) == 0 && decode_scan(&scan, file, &rows, picture) == 0;
    }
    PyMem_RawFree(codes);
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
        PyErr_SetString(PyExc_ValueError, "pixels are uint8 [h, w, 3], the part (top, left, height, width) of them");
    } else if (has_vectors() && shape[0] <= INT_MAX && shape[1] <= INT_MAX) {
        picture.pixels = result.buf, picture.height = (int)shape[0], picture.width = (int)shape[1];
        picture.bottom = picture.top + height, picture.right = picture.left + width;
        Py_BEGIN_ALLOW_THREADS
        found = decode_file((const uint8_t *)data, size, &picture);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&result);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(found);
}
#endif
