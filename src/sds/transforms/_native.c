/* Pixels without Python: antialiased resizing of uint8, to the bit what torch makes of it, from anywhere to anywhere.
   (JPEG files are in _jpeg.c, which is part of the same module.)

   Comes in: pixels [h, w, c], whose rows may lie apart. Goes out: [c, H, W], without gaps. Every pixel of a resized row
   is a sum of a few pixels of the row as it was; taps say which, and how much each counts, in fixed point. Rows first,
   then columns, rounded to bytes in between, as torch (and Pillow) do it.

   Columns are summed whole rows at a time, which `blend` does. For the other pass, strips of the picture are turned on
   their side and back, which also sorts the channels; so `blend` is all there is to calculate. Python's lock is let go
   of once. */

#include "_native.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define X86
#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512bw")))
#include <immintrin.h>
#endif
#define INLINE static inline __attribute__((always_inline))

enum { LONGEST = 1 << 20 }; /* pixels of a side, or channels */
enum { STRIP = 64, TILE = 16, BLOCK = 32 }; /* rows turned at once; side of a square of bytes; values summed at once */

/* Along one axis: result i is the sum of weights[i][k] * pixel[starts[i] + k], rounded, shifted right by `precision`.
   All have the same number of weights, and none reaches beyond the picture: zeros fill what is left. */
typedef struct {
    Py_ssize_t size, num_taps; /* places of the result; weights of each */
    Py_ssize_t *starts;        /* [size] */
    int16_t *weights;          /* [size, num_taps] */
    int precision;
} Taps;

/* How much a pixel counts that lies x pixels of the smaller picture away, and from where on none does. */
typedef struct {
    const char *name;
    double reach;
    double (*weigh)(double x);
} Filter;

static double triangle(double x) {
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double cubic(double x) { /* Keys' cubic with a = -1/2 */
    x = fabs(x);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

static const Filter filters[] = {{"bilinear", 1, triangle}, {"bicubic", 2, cubic}};

static void free_taps(Taps *taps) {
    PyMem_RawFree(taps->starts);
    PyMem_RawFree(taps->weights);
}

/* Which pixels count for place i: from the first one, up to the end. */
typedef struct {
    double centre;
    Py_ssize_t first, end;
} Span;

INLINE Span span_of(Py_ssize_t i, Py_ssize_t length, double scale, double support) {
    const double centre = scale * (i + 0.5), from = centre - support + 0.5, to = centre + support + 0.5;
    return (Span){centre, from > 0 ? (Py_ssize_t)from : 0, to < length ? (Py_ssize_t)to : length};
}

/* The taps that make rows of `length` pixels `size` long; -1 if there is no memory for them. */
static int make_taps(Taps *taps, Py_ssize_t length, Py_ssize_t size, const Filter *filter) {
    const double scale = (double)length / size, stretch = scale > 1 ? scale : 1, support = filter->reach * stretch;
    Py_ssize_t num_taps = 1;
    for (Py_ssize_t i = 0; i < size; i++) {
        const Span span = span_of(i, length, scale, support);
        if (span.end - span.first > num_taps) num_taps = span.end - span.first;
    }
    taps->size = size, taps->num_taps = num_taps;
    taps->starts = PyMem_RawMalloc(size * sizeof *taps->starts);
    taps->weights = PyMem_RawMalloc(size * num_taps * sizeof *taps->weights);
    double *all = PyMem_RawCalloc(size * num_taps, sizeof *all), most = 0; /* the weights before they are rounded */
    if (!taps->starts || !taps->weights || !all) {
        PyMem_RawFree(all);
        return -1;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        const Span span = span_of(i, length, scale, support);
        const Py_ssize_t start = span.first + num_taps <= length ? span.first : length - num_taps;
        double *exact = all + i * num_taps + (span.first - start), sum = 0;
        taps->starts[i] = start;
        for (Py_ssize_t k = 0; k < span.end - span.first; k++)
            sum += exact[k] = filter->weigh((k + span.first - span.centre + 0.5) * (1 / stretch));
        for (Py_ssize_t k = 0; sum != 0 && k < span.end - span.first; k++) {
            exact[k] /= sum;
            if (exact[k] > most) most = exact[k];
        }
    }
    for (taps->precision = 0; taps->precision < 22; taps->precision++) /* as much as 16 bits have room for */
        if ((int)(0.5 + most * (1 << (taps->precision + 1))) >= 1 << 15) break;
    for (Py_ssize_t i = 0; i < size * num_taps; i++) {
        const double fixed = all[i] * (1 << taps->precision);
        taps->weights[i] = (int16_t)(fixed < 0 ? fixed - 0.5 : fixed + 0.5);
    }
    PyMem_RawFree(all);
    return 0;
}

typedef struct {
    const uint8_t *pixels;
    Py_ssize_t height, width, channels, stride; /* bytes from a row to the next */
} Picture;

/* Sums of rows that lie `stride` apart, for `num` values of each. */
typedef void Blend(const uint8_t *in, Py_ssize_t stride, uint8_t *out, Py_ssize_t num, const int16_t *weights,
                   Py_ssize_t num_taps, int precision);

INLINE void blend_few(const uint8_t *in, Py_ssize_t stride, uint8_t *out, int num, const int16_t *weights,
                      Py_ssize_t num_taps, int precision) {
    int32_t sums[BLOCK];
    for (int i = 0; i < num; i++) sums[i] = 1 << (precision - 1);
    for (Py_ssize_t k = 0; k < num_taps; k++)
        for (int i = 0; i < num; i++) sums[i] += weights[k] * in[k * stride + i];
    for (int i = 0; i < num; i++) {
        const int32_t value = sums[i] >> precision;
        out[i] = value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
    }
}

INLINE void blend_plain(const uint8_t *in, Py_ssize_t stride, uint8_t *out, Py_ssize_t num, const int16_t *weights,
                        Py_ssize_t num_taps, int precision) {
    Py_ssize_t start = 0;
    for (; start + BLOCK <= num; start += BLOCK) /* a constant, so that the compiler makes vectors of it */
        blend_few(in + start, stride, out + start, BLOCK, weights, num_taps, precision);
    blend_few(in + start, stride, out + start, (int)(num - start), weights, num_taps, precision);
}

#ifdef X86
/* The same by vectors of so many bits. Two taps at a time: bytes of two rows become pairs of words, which one
   instruction weighs and adds. The packs at the end put them back in order, and clamp. */
#define BLEND(BITS, TARGET)                                                                                            \
    TARGET INLINE void blend_block_##BITS(const uint8_t *in, Py_ssize_t stride, uint8_t *out, const int16_t *weights,  \
                                          Py_ssize_t num_taps, int precision) {                                        \
        const __m##BITS##i zero = _mm##BITS##_setzero_si##BITS(), half = _mm##BITS##_set1_epi32(1 << (precision - 1)); \
        __m##BITS##i sums[4] = {half, half, half, half};                                                               \
        for (Py_ssize_t k = 0; k < num_taps; k += 2) {                                                                 \
            const int is_pair = k + 1 < num_taps;                                                                      \
            const uint32_t pair = (uint16_t)weights[k] | (uint32_t)(is_pair ? weights[k + 1] : 0) << 16;               \
            const __m##BITS##i both = _mm##BITS##_set1_epi32((int32_t)pair);                                           \
            const __m##BITS##i first = _mm##BITS##_loadu_si##BITS((const void *)(in + k * stride));                    \
            const __m##BITS##i second =                                                                                \
                is_pair ? _mm##BITS##_loadu_si##BITS((const void *)(in + (k + 1) * stride)) : zero;                    \
            const __m##BITS##i low = _mm##BITS##_unpacklo_epi8(first, second);                                         \
            const __m##BITS##i high = _mm##BITS##_unpackhi_epi8(first, second);                                        \
            const __m##BITS##i pairs[4] = {                                                                            \
                _mm##BITS##_unpacklo_epi8(low, zero), _mm##BITS##_unpackhi_epi8(low, zero),                            \
                _mm##BITS##_unpacklo_epi8(high, zero), _mm##BITS##_unpackhi_epi8(high, zero)};                         \
            for (int i = 0; i < 4; i++)                                                                                \
                sums[i] = _mm##BITS##_add_epi32(sums[i], _mm##BITS##_madd_epi16(pairs[i], both));                      \
        }                                                                                                              \
        for (int i = 0; i < 4; i++) sums[i] = _mm##BITS##_sra_epi32(sums[i], _mm_cvtsi32_si128(precision));            \
        const __m##BITS##i low = _mm##BITS##_packs_epi32(sums[0], sums[1]);                                            \
        const __m##BITS##i high = _mm##BITS##_packs_epi32(sums[2], sums[3]);                                           \
        _mm##BITS##_storeu_si##BITS((void *)out, _mm##BITS##_packus_epi16(low, high));                                 \
    }                                                                                                                  \
    TARGET INLINE void blend_##BITS(const uint8_t *in, Py_ssize_t stride, uint8_t *out, Py_ssize_t num,                \
                                    const int16_t *weights, Py_ssize_t num_taps, int precision) {                      \
        enum { LENGTH = BITS / 8 };                                                                                    \
        if (num < LENGTH) {                                                                                            \
            blend_plain(in, stride, out, num, weights, num_taps, precision);                                           \
            return;                                                                                                    \
        }                                                                                                              \
        for (Py_ssize_t start = 0; start + LENGTH <= num; start += LENGTH)                                             \
            blend_block_##BITS(in + start, stride, out + start, weights, num_taps, precision);                         \
        if (num % LENGTH) /* the last block overlaps the one before it */                                              \
            blend_block_##BITS(in + num - LENGTH, stride, out + num - LENGTH, weights, num_taps, precision);           \
    }

BLEND(256, AVX2)
BLEND(512, AVX512)
#endif

typedef uint8_t Bytes __attribute__((vector_size(TILE)));
#ifdef __clang__
#define CHOOSE(first, second, ...) __builtin_shufflevector(first, second, __VA_ARGS__)
#else
#define CHOOSE(first, second, ...) __builtin_shuffle(first, second, (Bytes){__VA_ARGS__})
#endif

/* A square of bytes on its side: four times, each byte of the first half meets its partner of the second. */
INLINE void turn_tile(const uint8_t *in, Py_ssize_t in_stride, uint8_t *out, Py_ssize_t out_stride) {
    Bytes rows[TILE], met[TILE];
    for (int i = 0; i < TILE; i++) memcpy(&rows[i], in + i * in_stride, TILE);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < TILE / 2; i++) {
            const Bytes first = rows[i], second = rows[i + TILE / 2];
            met[2 * i] = CHOOSE(first, second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            met[2 * i + 1] = CHOOSE(first, second, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
        memcpy(rows, met, sizeof rows);
    }
    for (int i = 0; i < TILE; i++) memcpy(out + i * out_stride, &rows[i], TILE);
}

/* [height, width] bytes -> [width, height]. The last tiles overlap those before them. */
INLINE void turn(const uint8_t *in, Py_ssize_t in_stride, uint8_t *out, Py_ssize_t out_stride, Py_ssize_t height,
                 Py_ssize_t width) {
    if (height < TILE || width < TILE) {
        for (Py_ssize_t y = 0; y < height; y++)
            for (Py_ssize_t x = 0; x < width; x++) out[x * out_stride + y] = in[y * in_stride + x];
        return;
    }
    for (Py_ssize_t top = 0; top < height; top += TILE) {
        const Py_ssize_t y = top + TILE <= height ? top : height - TILE;
        for (Py_ssize_t left = 0; left < width; left += TILE) {
            const Py_ssize_t x = left + TILE <= width ? left : width - TILE;
            turn_tile(in + y * in_stride + x, in_stride, out + x * out_stride + y, out_stride);
        }
    }
}

/* Memory for what is between the two passes, little enough for the processor's cache: a strip on its side, before and
   after its columns are blended, and the rows of it and of the strips before it that are still to be blended. */
static Py_ssize_t num_scratch(const Picture *from, const Taps *rows, const Taps *columns) {
    return from->channels * (STRIP * (from->width + columns->size) + (rows->num_taps + STRIP) * columns->size);
}

INLINE void resample_by(Blend *blend, const Picture *from, uint8_t *out, const Taps *rows, const Taps *columns,
                        uint8_t *scratch) {
    const Py_ssize_t channels = from->channels, width = columns->size, row = channels * width;
    uint8_t *turned = scratch;                                  /* [from->width, channels, STRIP] */
    uint8_t *blended = turned + from->width * channels * STRIP; /* [channels, width, STRIP] */
    uint8_t *narrow = blended + row * STRIP;                    /* [rows->num_taps + STRIP, channels, width] */
    Py_ssize_t first = 0, next = 0; /* the picture's row that narrow begins with, the result's row that comes next */
    for (Py_ssize_t y = 0; y < from->height && next < rows->size; y += STRIP) {
        const Py_ssize_t height = from->height - y < STRIP ? from->height - y : STRIP;
        turn(from->pixels + y * from->stride, from->stride, turned, STRIP, height, from->width * channels);
        /* below the last row there is anything, which is blended too, and left behind */
        for (Py_ssize_t x = 0; x < width; x++)
            for (Py_ssize_t c = 0; c < channels; c++)
                blend(turned + (columns->starts[x] * channels + c) * STRIP, channels * STRIP,
                      blended + (c * width + x) * STRIP, STRIP, columns->weights + x * columns->num_taps,
                      columns->num_taps, columns->precision);
        turn(blended, STRIP, narrow + (y - first) * row, row, row, height);
        for (; next < rows->size && rows->starts[next] + rows->num_taps <= y + height; next++)
            for (Py_ssize_t c = 0; c < channels; c++)
                blend(narrow + (rows->starts[next] - first) * row + c * width, row,
                      out + (c * rows->size + next) * width, width, rows->weights + next * rows->num_taps,
                      rows->num_taps, rows->precision);
        if (next < rows->size) { /* what comes next has fewer rows here than it has taps; none, if it begins later */
            const Py_ssize_t start = rows->starts[next] < y + height ? rows->starts[next] : y + height;
            memmove(narrow, narrow + (start - first) * row, (y + height - start) * row);
            first = start;
        }
    }
}

typedef void Run(const Picture *from, uint8_t *out, const Taps *rows, const Taps *columns, uint8_t *scratch);

static void run_plain(const Picture *from, uint8_t *out, const Taps *rows, const Taps *columns, uint8_t *scratch) {
    resample_by(blend_plain, from, out, rows, columns, scratch);
}

#ifdef X86
AVX2 static void run_avx2(const Picture *from, uint8_t *out, const Taps *rows, const Taps *columns, uint8_t *scratch) {
    resample_by(blend_256, from, out, rows, columns, scratch);
}

AVX512 static void run_avx512(const Picture *from, uint8_t *out, const Taps *rows, const Taps *columns,
                              uint8_t *scratch) {
    resample_by(blend_512, from, out, rows, columns, scratch);
}
#endif

/* All ways to the same result, the fastest last. */
static const struct {
    const char *name;
    Run *run;
} ways[] = {
    {"plain", run_plain},
#ifdef X86
    {"avx2", run_avx2},
    {"avx512", run_avx512},
#endif
};

/* How many of them this machine has. */
static int num_ways(void) {
#ifdef X86
    return __builtin_cpu_supports("avx512bw") ? 3 : __builtin_cpu_supports("avx2") ? 2 : 1;
#else
    return 1;
#endif
}

/* Three dimensions of uint8, none of them empty, or so long that sums or products of sizes could overflow. */
static int is_bytes(const Py_buffer *buffer) {
    if (buffer->ndim != 3 || buffer->format == NULL || strcmp(buffer->format, "B")) return 0;
    for (int i = 0; i < 3; i++)
        if (buffer->shape[i] < 1 || buffer->shape[i] > LONGEST) return 0;
    return 1;
}

static int read_picture(PyObject *given, Py_buffer *buffer, Picture *picture) {
    if (PyObject_GetBuffer(given, buffer, PyBUF_STRIDES | PyBUF_FORMAT) < 0) return -1;
    const Py_ssize_t *shape = buffer->shape, *strides = buffer->strides;
    if (!is_bytes(buffer) || (strides[2] != 1 && shape[2] != 1) || (strides[1] != shape[2] && shape[1] != 1)) {
        PyErr_SetString(PyExc_ValueError, "pixels are uint8 [h, w, c], without gaps in a row, none, or too many");
        return -1;
    }
    picture->pixels = buffer->buf, picture->stride = buffer->strides[0];
    picture->height = buffer->shape[0], picture->width = buffer->shape[1], picture->channels = buffer->shape[2];
    return 0;
}

static PyObject *resample(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *pixels_given, *result_given;
    const char *mode;
    Py_buffer pixels = {0}, result = {0};
    Picture from;
    Taps rows = {0}, other = {0};
    const Filter *filter = filters;
    uint8_t *scratch = NULL;
    int way = num_ways() - 1;
    const char *name = ways[way].name;
    if (!PyArg_ParseTuple(args, "OOs|s", &pixels_given, &result_given, &mode, &name)) return NULL;
    while (way >= 0 && strcmp(ways[way].name, name)) way--;
    if (way < 0) return PyErr_Format(PyExc_ValueError, "no such way here: %s", name);
    while (filter < filters + Py_ARRAY_LENGTH(filters) && strcmp(filter->name, mode)) filter++;
    if (filter == filters + Py_ARRAY_LENGTH(filters)) return PyErr_Format(PyExc_ValueError, "no such filter: %s", mode);
    if (read_picture(pixels_given, &pixels, &from) < 0) goto done;
    if (PyObject_GetBuffer(result_given, &result, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE) < 0) goto done;
    if (!is_bytes(&result) || result.shape[0] != from.channels) {
        PyErr_SetString(PyExc_ValueError, "the result is uint8 [c, H, W], with as many channels as the pixels");
        goto done;
    }
    const int is_square = from.height == from.width && result.shape[1] == result.shape[2];
    const Taps *columns = is_square ? &rows : &other; /* to make them takes a twentieth of the time */
    Py_BEGIN_ALLOW_THREADS
    if (make_taps(&rows, from.height, result.shape[1], filter) == 0 &&
        (is_square || make_taps(&other, from.width, result.shape[2], filter) == 0) &&
        (scratch = PyMem_RawMalloc(num_scratch(&from, &rows, columns))))
        ways[way].run(&from, result.buf, &rows, columns, scratch);
    Py_END_ALLOW_THREADS
    if (scratch == NULL) PyErr_NoMemory();
done:
    PyMem_RawFree(scratch);
    free_taps(&rows), free_taps(&other);
    PyBuffer_Release(&pixels), PyBuffer_Release(&result); /* one that was never taken is nothing to release */
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"scan_jpeg", sds_scan_jpeg, METH_O, "Height, width, components, bits, is progressive, EXIF; None if it is odd."},
    {"decode_jpeg", sds_decode_jpeg, METH_VARARGS, "Makes a part of a picture [h, w, 3]; False if it is for others."},
    {"resample", resample, METH_VARARGS, "Resizes pixels [h, w, c] into a result [c, H, W]."},
    {NULL, NULL, 0, NULL},
};

static int fill_module(PyObject *module) {
    PyObject *names = PyTuple_New(num_ways());
    for (int i = 0; names != NULL && i < num_ways(); i++) {
        PyObject *name = PyUnicode_FromString(ways[i].name);
        if (name == NULL) Py_CLEAR(names);
        else PyTuple_SET_ITEM(names, i, name);
    }
    if (names == NULL || PyModule_AddObject(module, "WAYS", names) < 0) {
        Py_XDECREF(names);
        return -1;
    }
    return sds_fill_jpeg(module) < 0 ? -1 : PyModule_AddIntConstant(module, "LONGEST", LONGEST);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill_module},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Pixels without Python.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }
