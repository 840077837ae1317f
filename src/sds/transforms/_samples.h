/* What a JPEG's blocks become: samples, then pixels (_samples.c). All of it is AVX2's: ask `has_vectors` before. */

#ifndef SDS_SAMPLES_H
#define SDS_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__GNUC__)
#define VECTORS
#define FAST __attribute__((target("avx2,bmi2")))
#endif

#pragma GCC visibility push(hidden)

enum { MARGIN = 64 }; /* bytes on either side of a row of samples, which are read, or written, and mean nothing */

/* A block's coefficients [8, 8], what they are multiplied with, and where its samples go. */
typedef struct {
    const int16_t *block;
    const uint16_t *factors;
    uint8_t *samples;
    ptrdiff_t stride;
} Block;

/* Samples of Y, Cb and Cr: of the last rows alone, as many as a power of two, since none is needed for long. */
typedef struct {
    uint8_t *samples[3];
    ptrdiff_t strides[3];
    int num_rows[3];
} Rows;

INLINE uint8_t *row_of(const Rows *rows, int component, int y) {
    return rows->samples[component] + (y & (rows->num_rows[component] - 1)) * rows->strides[component];
}

/* A picture [height, width, 3], and the part of it that is wanted. */
typedef struct {
    uint8_t *pixels;
    int height, width;
    int top, left, bottom, right;
} Picture;

/* Whether this processor has them. */
int has_vectors(void);

/* The samples of two blocks, which may be the same one. */
void make_samples(const Block *first, const Block *second);

/* Pixels of the rows from y up to the end, as far as they are wanted. `across`, `down`: samples of Y for each of Cb and
   Cr, along a row and along a column: 1 and 1, 2 and 1, or 2 and 2. */
void make_rows(const Rows *rows, const Picture *picture, int y, int end, int across, int down);

#pragma GCC visibility pop
#endif
