/* What a JPEG's blocks become: coefficients -> samples -> RGB pixels, to the bit what TurboJPEG makes of them.

   Comes in: blocks of coefficients; rows of Y, Cb and Cr. Goes out: rows of samples; pixels [h, w, 3]. All of it is
   whole numbers in the fixed point of the reference decoder; what is blended is blended by its triangle filter. */

#include "_samples.h"

#include <string.h>

#ifndef VECTORS
int has_vectors(void) { return 0; }
#else
#include <immintrin.h>

int has_vectors(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"); }

#define ADD _mm256_add_epi32
#define SUBTRACT _mm256_sub_epi32
#define ADD_WORDS _mm256_add_epi16

/* Two words, over and over: what _mm256_madd_epi16 multiplies pairs with. */
#define PAIR(first, second) _mm256_set1_epi32((int32_t)((uint16_t)(first) | (uint32_t)(uint16_t)(second) << 16))

/* ----------------------------------------------------------------------------------------- coefficients -> samples */

/* In each half: 8 rows of 8 words become columns. */
FAST INLINE void turn(__m256i rows[8]) {
    __m256i pairs[8], fours[8];
    for (int i = 0; i < 4; i++) {
        pairs[i] = _mm256_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);     /* columns 0-3 of two rows */
        pairs[i + 4] = _mm256_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]); /* 4-7 */
    }
    for (int i = 0; i < 4; i++) {
        fours[i] = _mm256_unpacklo_epi32(pairs[2 * i], pairs[2 * i + 1]);     /* columns 0, 1 or 4, 5 of four rows */
        fours[i + 4] = _mm256_unpackhi_epi32(pairs[2 * i], pairs[2 * i + 1]); /* 2, 3 or 6, 7 */
    }
    for (int i = 0; i < 4; i++) {
        const int from = i % 2 * 4 + i / 2 * 2;
        rows[2 * i] = _mm256_unpacklo_epi64(fours[from], fours[from + 1]);
        rows[2 * i + 1] = _mm256_unpackhi_epi64(fours[from], fours[from + 1]);
    }
}

/* The one-dimensional transform of Loeffler, Ligtenberg and Moschytz, down the columns. Factors are those of the
   reference decoder, in units of 2**-13; products that are added there are added here before anything is rounded. */
FAST INLINE void transform(__m256i rows[8], int shift) {
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (shift - 1));
    const __m256i sum04 = ADD_WORDS(rows[0], rows[4]), difference04 = _mm256_sub_epi16(rows[0], rows[4]);
    const __m256i sum73 = ADD_WORDS(rows[7], rows[3]), sum51 = ADD_WORDS(rows[5], rows[1]);
    __m256i even[2][4], odd[2][4]; /* of low and high words: what two results share; what is added, or taken away */
    for (int i = 0; i < 2; i++) {
#define MEET(a, b) (i ? _mm256_unpackhi_epi16(a, b) : _mm256_unpacklo_epi16(a, b))
        const __m256i in26 = MEET(rows[2], rows[6]), in71 = MEET(rows[7], rows[1]), in53 = MEET(rows[5], rows[3]);
        const __m256i sums = MEET(sum73, sum51);
        const __m256i a = ADD(_mm256_srai_epi32(MEET(zero, sum04), 3), half); /* << 16 >> 3 */
        const __m256i b = ADD(_mm256_srai_epi32(MEET(zero, difference04), 3), half);
#undef MEET
        const __m256i c = _mm256_madd_epi16(in26, PAIR(4433 + 6270, 4433));
        const __m256i d = _mm256_madd_epi16(in26, PAIR(4433, 4433 - 15137));
        const __m256i e = _mm256_madd_epi16(sums, PAIR(9633, 9633 - 3196));
        const __m256i f = _mm256_madd_epi16(sums, PAIR(9633 - 16069, 9633));
        even[i][0] = ADD(a, c), even[i][1] = ADD(b, d), even[i][2] = SUBTRACT(b, d), even[i][3] = SUBTRACT(a, c);
        odd[i][0] = ADD(_mm256_madd_epi16(in71, PAIR(-7373, 12299 - 7373)), e);
        odd[i][1] = ADD(_mm256_madd_epi16(in53, PAIR(-20995, 25172 - 20995)), f);
        odd[i][2] = ADD(_mm256_madd_epi16(in53, PAIR(16819 - 20995, -20995)), e);
        odd[i][3] = ADD(_mm256_madd_epi16(in71, PAIR(2446 - 7373, -7373)), f);
    }
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm256_packs_epi32(_mm256_srai_epi32(ADD(even[0][i], odd[0][i]), shift),
                                     _mm256_srai_epi32(ADD(even[1][i], odd[1][i]), shift));
        rows[7 - i] = _mm256_packs_epi32(_mm256_srai_epi32(SUBTRACT(even[0][i], odd[0][i]), shift),
                                         _mm256_srai_epi32(SUBTRACT(even[1][i], odd[1][i]), shift));
    }
}

FAST INLINE __m256i both_at(const void *first, const void *second) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(first)), _mm_loadu_si128(second), 1);
}

/* Row i of both blocks. */
FAST INLINE __m256i row_at(const Block *first, const Block *second, int i) {
    return _mm256_mullo_epi16(both_at(first->block + 8 * i, second->block + 8 * i),
                              both_at(first->factors + 8 * i, second->factors + 8 * i));
}

/* Whether there is nothing below a block's first row. */
FAST INLINE int is_flat(const int16_t *block) {
    const __m256i two = _mm256_or_si256(_mm256_loadu_si256((const void *)(block + 8)),   /* rows 1 and 2 */
                                        _mm256_loadu_si256((const void *)(block + 24))); /* 3 and 4 */
    const __m256i more = _mm256_or_si256(_mm256_loadu_si256((const void *)(block + 40)),  /* 5 and 6 */
                                         _mm256_loadu_si256((const void *)(block + 48))); /* 6 and 7 */
    const __m256i all = _mm256_or_si256(two, more);
    return _mm256_testz_si256(all, all);
}

FAST void make_samples(const Block *first, const Block *second) {
    /* a block that is flat needs no transform down its columns. TurboJPEG makes none, and with coefficients that are
       too large for any picture that shows: 16 bits overflow */
    const int is_first = is_flat(first->block), is_second = is_flat(second->block);
    __m256i rows[8];
    if (!is_first || !is_second) {
        for (int i = 0; i < 8; i++) rows[i] = row_at(first, second, i);
        transform(rows, 13 - 2); /* two bits more than samples have, in between */
    }
    if (is_first || is_second) {
        const __m256i low = _mm256_castsi128_si256(_mm_set1_epi8((char)-is_first));
        const __m256i mask = _mm256_inserti128_si256(low, _mm_set1_epi8((char)-is_second), 1);
        const __m256i top = _mm256_slli_epi16(row_at(first, second, 0), 2);
        for (int i = 0; i < 8; i++) rows[i] = is_first && is_second ? top : _mm256_blendv_epi8(rows[i], top, mask);
    }
    turn(rows);
    transform(rows, 13 + 2 + 3);
    turn(rows);
    for (int i = 0; i < 8; i += 2) {
        const __m256i two = _mm256_add_epi8(_mm256_packs_epi16(rows[i], rows[i + 1]), _mm256_set1_epi8((char)128));
        const __m128i left = _mm256_castsi256_si128(two), right = _mm256_extracti128_si256(two, 1);
        _mm_storel_epi64((void *)(first->samples + i * first->stride), left);
        _mm_storeh_pd((void *)(first->samples + (i + 1) * first->stride), _mm_castsi128_pd(left));
        _mm_storel_epi64((void *)(second->samples + i * second->stride), right);
        _mm_storeh_pd((void *)(second->samples + (i + 1) * second->stride), _mm_castsi128_pd(right));
    }
}

/* ----------------------------------------------------------------------------------------------- samples -> pixels */

enum { STEP = 32 }; /* pixels that are made at once */

/* Cb or Cr of so many pixels, as words less 128: of pixels 0-7 and 16-23, and of 8-15 and 24-31. */
typedef struct {
    __m256i low, high;
} Chroma;

FAST INLINE __m256i words_at(const uint8_t *at) { return _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)at)); }

FAST INLINE __m256i threefold(__m256i x) { return ADD_WORDS(x, ADD_WORDS(x, x)); }

/* Three parts of this row, and one of the other. */
FAST INLINE __m256i blend_at(const uint8_t *here, const uint8_t *beside) {
    return ADD_WORDS(threefold(words_at(here)), words_at(beside));
}

/* Chroma at a place of a row; `beside` is the row, above or below, that is blended with it. */
FAST INLINE Chroma chroma_at(const uint8_t *here, const uint8_t *beside, int across, int down) {
    const __m256i middle = _mm256_set1_epi16(128);
    if (across == 1) {
        const __m256i bytes = _mm256_loadu_si256((const void *)here), zero = _mm256_setzero_si256();
        return (Chroma){_mm256_sub_epi16(_mm256_unpacklo_epi8(bytes, zero), middle),
                        _mm256_sub_epi16(_mm256_unpackhi_epi8(bytes, zero), middle)};
    }
    __m256i even, odd; /* what is between two samples is nearer to one of them: three parts of it, one of the other */
    if (down == 1) {
        const __m256i most = threefold(words_at(here));
        even = ADD_WORDS(ADD_WORDS(most, words_at(here - 1)), _mm256_set1_epi16(1));
        odd = ADD_WORDS(ADD_WORDS(most, words_at(here + 1)), _mm256_set1_epi16(2));
        even = _mm256_srli_epi16(even, 2), odd = _mm256_srli_epi16(odd, 2);
    } else {
        const __m256i most = threefold(blend_at(here, beside));
        even = ADD_WORDS(ADD_WORDS(most, blend_at(here - 1, beside - 1)), _mm256_set1_epi16(8));
        odd = ADD_WORDS(ADD_WORDS(most, blend_at(here + 1, beside + 1)), _mm256_set1_epi16(7));
        even = _mm256_srli_epi16(even, 4), odd = _mm256_srli_epi16(odd, 4);
    }
    even = _mm256_sub_epi16(even, middle), odd = _mm256_sub_epi16(odd, middle);
    return (Chroma){_mm256_unpacklo_epi16(even, odd), _mm256_unpackhi_epi16(even, odd)};
}

/* The product with factor / 2**16, rounded: (2 x factor / 2**16 + 1) / 2, each time rounded down. */
FAST INLINE __m256i product(__m256i x, int factor) {
    const __m256i twice = _mm256_mulhi_epi16(ADD_WORDS(x, x), _mm256_set1_epi16((short)factor));
    return _mm256_srai_epi16(ADD_WORDS(twice, _mm256_set1_epi16(1)), 1);
}

/* What green has of both: -0.34414 Cb - 0.71414 Cr. */
FAST INLINE __m256i green_of(__m256i cb, __m256i cr) {
    const __m256i factors = PAIR(-22554, 65536 - 46802), half = _mm256_set1_epi32(1 << 15);
    const __m256i low = ADD(_mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), factors), half);
    const __m256i high = ADD(_mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), factors), half);
    return _mm256_sub_epi16(_mm256_packs_epi32(_mm256_srai_epi32(low, 16), _mm256_srai_epi32(high, 16)), cr);
}

/* Of 16 bytes of one colour, those that come to the part-th 16 of 48 bytes of all colours, each in its place. */
FAST INLINE __m256i spread(__m256i bytes, int colour, int part) {
    int8_t from[32];
    for (int i = 0; i < 32; i++) {
        const int place = 16 * part + i % 16;
        from[i] = place % 3 == colour ? (int8_t)(place / 3) : -1;
    }
    return _mm256_shuffle_epi8(bytes, _mm256_loadu_si256((const void *)from));
}

FAST INLINE __m256i mixed(__m256i red, __m256i green, __m256i blue, int part) {
    return _mm256_or_si256(_mm256_or_si256(spread(red, 0, part), spread(green, 1, part)), spread(blue, 2, part));
}

FAST INLINE void make_pixels(const uint8_t *luma, Chroma cb, Chroma cr, uint8_t *out) {
    const __m256i bytes = _mm256_loadu_si256((const void *)luma), zero = _mm256_setzero_si256();
    const __m256i y[2] = {_mm256_unpacklo_epi8(bytes, zero), _mm256_unpackhi_epi8(bytes, zero)};
    const __m256i u[2] = {cb.low, cb.high}, v[2] = {cr.low, cr.high};
    __m256i r[2], g[2], b[2];
    for (int i = 0; i < 2; i++) {
        r[i] = ADD_WORDS(ADD_WORDS(y[i], v[i]), product(v[i], 91881 - 65536));                            /* 1.40200 */
        g[i] = ADD_WORDS(y[i], green_of(u[i], v[i]));
        b[i] = ADD_WORDS(ADD_WORDS(y[i], ADD_WORDS(u[i], u[i])), product(u[i], 116130 - 2 * 65536)); /* 1.77200 */
    }
    const __m256i red = _mm256_packus_epi16(r[0], r[1]), green = _mm256_packus_epi16(g[0], g[1]);
    const __m256i blue = _mm256_packus_epi16(b[0], b[1]);
    /* of pixels 0-15 in the low half, of pixels 16-31 in the high one */
    const __m256i first = mixed(red, green, blue, 0), second = mixed(red, green, blue, 1);
    const __m256i third = mixed(red, green, blue, 2);
    _mm256_storeu_si256((void *)out, _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256((void *)(out + 32), _mm256_permute2x128_si256(third, first, 0x30));
    _mm256_storeu_si256((void *)(out + 64), _mm256_permute2x128_si256(second, third, 0x31));
}

/* Pixels from x up to the end of one row; what is made beyond that is left behind. */
FAST INLINE void make_row(const uint8_t *luma, const uint8_t *here[2], const uint8_t *beside[2], int x, int end,
                          uint8_t *out, int across, int down) {
    for (; x < end; x += STEP) {
        const Chroma cb = chroma_at(here[0] + x / across, beside[0] + x / across, across, down);
        const Chroma cr = chroma_at(here[1] + x / across, beside[1] + x / across, across, down);
        if (x + STEP <= end) {
            make_pixels(luma + x, cb, cr, out + 3 * x);
        } else {
            uint8_t last[3 * STEP];
            make_pixels(luma + x, cb, cr, last);
            memcpy(out + 3 * x, last, 3 * (end - x));
        }
    }
}

FAST INLINE void make_rows_of(const Rows *rows, const Picture *picture, int y, int end, int across, int down) {
    const int last = (picture->height - 1) / down; /* row of chroma: beyond the edges, the same comes once more */
    y = y < picture->top ? picture->top : y, end = end > picture->bottom ? picture->bottom : end;
    for (; y < end; y++) {
        const int at = y / down, next = y % down ? at + 1 : at - 1;
        const int other = down == 1 || next < 0 || next > last ? at : next;
        const uint8_t *here[2] = {row_of(rows, 1, at), row_of(rows, 2, at)};
        const uint8_t *beside[2] = {row_of(rows, 1, other), row_of(rows, 2, other)};
        make_row(row_of(rows, 0, y), here, beside, picture->left & ~1, picture->right,
                 picture->pixels + (ptrdiff_t)y * picture->width * 3, across, down);
    }
}

FAST void make_rows(const Rows *rows, const Picture *picture, int y, int end, int across, int down) {
    if (across == 1) make_rows_of(rows, picture, y, end, 1, 1); /* constants, so that each is compiled by itself */
    else if (down == 1) make_rows_of(rows, picture, y, end, 2, 1);
    else make_rows_of(rows, picture, y, end, 2, 2);
}
#endif
