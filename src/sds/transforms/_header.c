/* What a JPEG file says before its codes: its size for anybody, and all of it for those that are as most are.

   Comes in: a whole file. Goes out: what jpeg.py asks for; sizes, tables and where the codes begin, for _jpeg.c.
   Whatever is rare, odd or broken is left to others, and so is whatever TurboJPEG warns of: nothing here says what is
   wrong. */

#include "_native.h" /* first, since Python's header must be */
#include "_header.h"

#include <string.h>

enum { APP0 = 0xE0, APP1, APP2, APP14 = 0xEE, APP15, COM = 0xFE };
enum { MAX_SEGMENTS = 1000, MAX_SIDE = 65500 }; /* TurboJPEG takes no longer ones */

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
    int has_second; /* whether another image seems to begin in the header of this one */
} Walk;

typedef struct {
    int marker; /* 0 at the end of the file, -1 where it is odd */
    const uint8_t *data;
    Py_ssize_t length; /* -1 where no more segments come: at SOS, at EOI, at the end, where it is odd */
} Segment;

static Segment next_segment(Walk *walk) {
    while (walk->position + 4 <= walk->size) {
        const uint8_t *at = walk->data + walk->position;
        const int marker = at[1], length = word_at(at + 2);
        if (at[0] != 0xFF || walk->num_segments++ == MAX_SEGMENTS) return (Segment){-1, NULL, -1};
        if (marker == SOS || marker == EOI) return (Segment){marker, at + 2, -1};
        if (marker == 0xFF || is_alone(marker)) {
            walk->has_second |= marker == SOI;
            walk->position += marker == 0xFF ? 1 : 2;
            continue;
        }
        walk->position += 2 + length;
        if (length < 2 || walk->position > walk->size) return (Segment){-1, NULL, -1};
        return (Segment){marker, at + 4, length - 2};
    }
    return (Segment){0, NULL, -1};
}

static int begins_with(Segment found, const char *words, int num, int at_least) {
    return found.length >= at_least && memcmp(found.data, words, num) == 0;
}

/* What jpeg.py finds in a header, for those that are as most are. Others are None: it finds out itself what is odd. */
PyObject *sds_scan_jpeg(PyObject *Py_UNUSED(module), PyObject *given) {
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(given, &bytes, &size) < 0) return NULL;
    Walk walk = {(const uint8_t *)bytes, size, 2, 0, 0};
    Segment frame = {0}, exif = {0}, found;
    while ((found = next_segment(&walk)).length >= 0) {
        if (is_frame(found.marker) && found.length >= 6 && !frame.data) {
            frame = found;
        } else if (found.marker == APP1 && begins_with(found, "Exif\0", 6, 6)) {
            if (exif.data) Py_RETURN_NONE;
            exif = found;
        }
    }
    if (found.marker < 0 || !frame.data) Py_RETURN_NONE;
    return Py_BuildValue("iiiiNy#", word_at(frame.data + 1), word_at(frame.data + 3), frame.data[5], frame.data[0],
                         PyBool_FromLong(frame.marker % 4 == 2), (const char *)exif.data, exif.length);
}

#ifdef VECTORS
#include <pthread.h>

/* ------------------------------------------------------------------------------------------------- tables of codes */

enum { SMALL = 4096 };   /* bytes of a file: TurboJPEG has decoded it before tables of its own are made */
enum { DC = 0, AC = 2 }; /* of the four tables that a file may have: two of each kind */

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

/* Tables from what a file tells: how many codes there are of each length, and their symbols; -1 if that cannot be. */
static int make_codes(Codes *codes, const uint8_t *told, int is_dc) {
    const uint8_t *counts = told, *symbols = told + 16;
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

INLINE int num_symbols(const uint8_t *told) {
    int num = 0;
    for (int i = 0; i < 16; i++) num += told[i];
    return num;
}

/* The tables that the standard gives as an example, and whoever makes none of their own takes: how many codes there are
   of each length, and their symbols. */
static const uint8_t usual[4][16 + 162] = {
    {0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
    {0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
    {0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 125, 0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31,
     0x41, 0x06, 0x13, 0x51, 0x61, 0x07, 0x22, 0x71, 0x14, 0x32, 0x81, 0x91, 0xA1, 0x08, 0x23, 0x42, 0xB1, 0xC1,
     0x15, 0x52, 0xD1, 0xF0, 0x24, 0x33, 0x62, 0x72, 0x82, 0x09, 0x0A, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x25, 0x26,
     0x27, 0x28, 0x29, 0x2A, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3A, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49,
     0x4A, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5A, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6A, 0x73,
     0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7A, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x92, 0x93, 0x94,
     0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0xA2, 0xA3, 0xA4, 0xA5, 0xA6, 0xA7, 0xA8, 0xA9, 0xAA, 0xB2, 0xB3, 0xB4,
     0xB5, 0xB6, 0xB7, 0xB8, 0xB9, 0xBA, 0xC2, 0xC3, 0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xD2, 0xD3, 0xD4,
     0xD5, 0xD6, 0xD7, 0xD8, 0xD9, 0xDA, 0xE1, 0xE2, 0xE3, 0xE4, 0xE5, 0xE6, 0xE7, 0xE8, 0xE9, 0xEA, 0xF1, 0xF2,
     0xF3, 0xF4, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFA},
    {0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 119, 0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06,
     0x12, 0x41, 0x51, 0x07, 0x61, 0x71, 0x13, 0x22, 0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xA1, 0xB1, 0xC1, 0x09,
     0x23, 0x33, 0x52, 0xF0, 0x15, 0x62, 0x72, 0xD1, 0x0A, 0x16, 0x24, 0x34, 0xE1, 0x25, 0xF1, 0x17, 0x18, 0x19,
     0x1A, 0x26, 0x27, 0x28, 0x29, 0x2A, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3A, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
     0x49, 0x4A, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5A, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6A,
     0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7A, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x92,
     0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0xA2, 0xA3, 0xA4, 0xA5, 0xA6, 0xA7, 0xA8, 0xA9, 0xAA, 0xB2,
     0xB3, 0xB4, 0xB5, 0xB6, 0xB7, 0xB8, 0xB9, 0xBA, 0xC2, 0xC3, 0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xD2,
     0xD3, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8, 0xD9, 0xDA, 0xE2, 0xE3, 0xE4, 0xE5, 0xE6, 0xE7, 0xE8, 0xE9, 0xEA, 0xF2,
     0xF3, 0xF4, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFA},
};
static Codes usual_codes[4];
static pthread_once_t usual_once = PTHREAD_ONCE_INIT;

static void make_usual(void) {
    for (int i = 0; i < 4; i++) make_codes(&usual_codes[i], usual[i], i < AC);
}

/* The codes of one of the file's tables; NULL if it has none, or none that make sense. */
static const Codes *codes_of(File *file, int which, int is_small) {
    const uint8_t *told = file->told[which];
    if (!told) return NULL;
    pthread_once(&usual_once, make_usual);
    for (int i = which < AC ? DC : AC, end = i + 2; i < end; i++) /* with the same counts there are as many symbols */
        if (!memcmp(told, usual[i], 16) && !memcmp(told, usual[i], 16 + num_symbols(told))) return &usual_codes[i];
    return is_small || make_codes(&file->made[which], told, which < AC) < 0 ? NULL : &file->made[which];
}

/* ---------------------------------------------------------------------------------------------------- its segments */

static int read_codes(File *file, Segment found) {
    const uint8_t *at = found.data, *end = at + found.length;
    while (at < end) {
        if (end - at < 17 || at[0] & ~0x11) return -1;
        const int num = num_symbols(at + 1);
        if (num > 256 || end - at < 17 + num) return -1;
        file->told[(at[0] & 0x10 ? AC : DC) + (at[0] & 1)] = at + 1; /* the last one counts; made when it is needed */
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
    if (file->height < 16 || file->width < 16 || file->height > MAX_SIDE || file->width > MAX_SIDE) return -1;
    if (file->across < 1 || file->across > 2 || file->down < 1 || file->down > file->across) return -1;
    if (data[10] != 0x11 || data[13] != 0x11) return -1;
    for (int i = 0; i < 3; i++) {
        if (data[6 + 3 * i] != i + 1 || data[8 + 3 * i] > 3) return -1;
        file->of_factors[i] = data[8 + 3 * i];
    }
    file->num_across = (file->width + 8 * file->across - 1) / (8 * file->across);
    file->num_down = (file->height + 8 * file->down - 1) / (8 * file->down);
    return 0;
}

static int read_interval(File *file, Segment found) {
    if (found.length != 2) return -1;
    file->interval = word_at(found.data);
    return 0;
}

/* JFIF of another version than 1 is warned of. */
static int read_jfif(Segment found) { return begins_with(found, "JFIF", 5, 14) && found.data[5] != 1 ? -1 : 0; }

/* What Adobe says of three components: that they are what they are without its word, Y, Cb and Cr. */
static int read_adobe(Segment found) { return begins_with(found, "Adobe", 5, 12) && found.data[11] != 1 ? -1 : 0; }

/* A colour profile is not used; but pieces out of their order, or without anything in them, are warned of. */
static int read_profile(File *file, Segment found) {
    if (!begins_with(found, "ICC_PROFILE", 12, 14)) return 0;
    const int number = found.data[12], num = found.data[13];
    if (found.length == 14 || number != file->num_profiles + 1 || number > num) return -1;
    if (file->num_profiles && file->num_told != num) return -1;
    file->num_profiles = number, file->num_told = num;
    return 0;
}

static int read_segment(File *file, Segment found) {
    switch (found.marker) {
    case SOF0: return read_frame(file, found);
    case DHT: return read_codes(file, found);
    case DQT: return read_factors(file, found);
    case DRI: return read_interval(file, found);
    case APP0: return read_jfif(found);
    case APP2: return read_profile(file, found);
    case APP14: return read_adobe(found);
    default: return found.marker == COM || (found.marker >= APP0 && found.marker <= APP15) ? 0 : -1;
    }
}

/* The start of the scan: all components, all coefficients, and tables that are there. */
static int read_scan(File *file, const uint8_t *at, const uint8_t *end, int is_small) {
    if (!file->width || end - at < 12 || word_at(at) != 12 || at[2] != 3) return -1;
    if (at[9] != 0 || at[10] != 63 || at[11] != 0 || file->num_profiles != file->num_told) return -1;
    const Codes *codes[4] = {NULL};
    for (int i = 0; i < 3; i++) {
        const int dc = DC + (at[4 + 2 * i] >> 4), ac = AC + (at[4 + 2 * i] & 15);
        if (at[3 + 2 * i] != i + 1 || dc > DC + 1 || ac > AC + 1 || !file->has_factors[file->of_factors[i]]) return -1;
        if (!codes[dc]) codes[dc] = codes_of(file, dc, is_small);
        if (!codes[ac]) codes[ac] = codes_of(file, ac, is_small);
        if (!codes[dc] || !codes[ac]) return -1;
        file->of_dc[i] = codes[dc], file->of_ac[i] = codes[ac];
    }
    file->begin = at + 12, file->end = end;
    return 0;
}

int read_header(File *file, const uint8_t *data, ptrdiff_t size) {
    Walk walk = {data, size, 2, 0, 0};
    Segment found;
    if (size < 2 || data[0] != 0xFF || data[1] != SOI) return -1;
    while ((found = next_segment(&walk)).length >= 0)
        if (read_segment(file, found) < 0) return -1;
    if (found.marker != SOS || walk.has_second) return -1;
    return read_scan(file, found.data, data + size, size < SMALL);
}
#endif
