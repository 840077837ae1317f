/* What a JPEG file says before its codes (_header.c), for whoever reads them (_jpeg.c). */

#ifndef SDS_HEADER_H
#define SDS_HEADER_H

#include "_samples.h"

#pragma GCC visibility push(hidden)

enum { SOF0 = 0xC0, DHT = 0xC4, RST0 = 0xD0, SOI = 0xD8, EOI, SOS, DQT, DRI = 0xDD }; /* markers */

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

/* What `size` bits mean: those that begin with 0 are negative. No processor guesses which, so nothing is asked here. */
INLINE int extend(int bits, int size) { return bits - (((bits >> (size - 1)) - 1) & ((1 << size) - 1)); }

/* Places of coefficients in the order in which they are coded; a wrong file may go 15 further. */
static const uint8_t natural[64 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,
    6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31,
    39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

typedef struct {
    int width, height;
    int across, down;         /* samples of luma for each of chroma, along a row and along a column */
    int num_across, num_down; /* groups of blocks in a row, and in a column: all that belong to a block of chroma */
    int interval;             /* groups between two restarts; 0 is none */
    int of_factors[3];        /* which table is for Y, Cb and Cr */
    const Codes *of_dc[3], *of_ac[3];
    uint16_t factors[4][64];
    int has_factors[4];
    const uint8_t *told[4];     /* what it says of its codes: DC's, then AC's */
    int num_profiles, num_told; /* of a colour profile: pieces that there were, and shall be */
    const uint8_t *begin, *end; /* of the scan, and of the file */
    Codes made[4];              /* at the end: they are not cleared in vain */
} File;

/* All that comes before the codes; -1 if this file is not of the usual kind. */
int read_header(File *file, const uint8_t *data, ptrdiff_t size);

#pragma GCC visibility pop
#endif
