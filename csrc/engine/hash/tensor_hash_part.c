#include "hash/tensor_hash_part.h"

#include <stdlib.h>
#include <string.h>

#include "hash/tensor_hash_quads.h"
#include "hash/tensor_hash_stream.h"

void mu_hash_part_start(struct mu_hash_part *part, uint64_t total) {
    *part = (struct mu_hash_part){.total = total};
}

void mu_hash_part_free(struct mu_hash_part *part) {
    free(part->cuts);
    part->cuts = NULL;
    part->cut_count = 0;
}

/* --- cut quads ---------------------------------------------------------------------------- */

/* Takes cut quads by ascending number. What comes of one quad is collected. Once complete it is
 * added to the sums of the part, else kept in it. */
struct collector {
    struct mu_hash_part *part; /* borrowed */
    struct mu_hash_stream stream;
    struct mu_hash_cut last; /* `has` is 0 before the first */
    size_t capacity;
};

static void start_collecting(struct collector *collector, struct mu_hash_part *part) {
    *collector = (struct collector){.part = part};
    mu_hash_stream_start(&collector->stream, mu_hash_kernel_best(), &part->sums);
}

/* The bytes that a quad has, as bits: all but those after the end of the whole. */
static uint16_t bytes_of_quad(const struct mu_hash_part *part, uint64_t quad) {
    uint64_t left = part->total - quad * MU_HASH_QUAD_BYTES;
    return (uint16_t)(left >= MU_HASH_QUAD_BYTES ? UINT16_MAX : (1u << left) - 1);
}

MU_MUST_CHECK static int keep_cut(struct collector *collector, struct mu_error *err) {
    struct mu_hash_part *part = collector->part;
    if (part->cut_count == collector->capacity) {
        size_t capacity = collector->capacity == 0 ? 2 : collector->capacity * 2;
        struct mu_hash_cut *cuts = realloc(part->cuts, capacity * sizeof(*cuts));
        if (cuts == NULL) {
            return mu_error_set(err, MU_ERR_NO_MEMORY, "no memory for %zu cut quads", capacity);
        }
        part->cuts = cuts;
        collector->capacity = capacity;
    }
    part->cuts[part->cut_count++] = collector->last;
    return MU_OK;
}

/* Adds or keeps the last quad. */
MU_MUST_CHECK static int finish_quad(struct collector *collector, struct mu_error *err) {
    const struct mu_hash_cut *last = &collector->last;
    if (last->has == 0) {
        return MU_OK;
    }
    if (last->has != bytes_of_quad(collector->part, last->quad)) {
        return keep_cut(collector, err);
    }
    mu_hash_stream_add(&collector->stream, last->bytes, last->quad * MU_HASH_QUAD_BYTES,
                       MU_HASH_QUAD_BYTES);
    return MU_OK;
}

MU_MUST_CHECK static int collect(struct collector *collector, const struct mu_hash_cut *cut,
                                 struct mu_error *err) {
    struct mu_hash_cut *last = &collector->last;
    if (last->quad != cut->quad || last->has == 0) {
        int code = finish_quad(collector, err);
        *last = *cut;
        return code;
    }
    if ((last->has & cut->has) != 0) {
        uint64_t byte = cut->quad * MU_HASH_QUAD_BYTES +
                        (uint64_t)__builtin_ctz((unsigned)(last->has & cut->has));
        return mu_error_set(err, MU_ERR_ARGUMENT, "byte %llu is there twice",
                            (unsigned long long)byte);
    }
    last->has |= cut->has;
    for (int i = 0; i < MU_HASH_QUAD_BYTES; i++) {
        last->bytes[i] |= cut->bytes[i];
    }
    return MU_OK;
}

/* Ends the part: `code` is how collecting went. */
MU_MUST_CHECK static int end_collecting(struct collector *collector, int code,
                                        struct mu_error *err) {
    code = code != MU_OK ? code : finish_quad(collector, err);
    mu_hash_stream_end(&collector->stream);
    if (code != MU_OK) {
        mu_hash_part_free(collector->part);
    }
    return code;
}

/* --- a box -------------------------------------------------------------------------------- */

/* One end of a row: the bytes [from, to) of the whole, within one quad. `bytes` NULL: they are in
 * the tensor. */
MU_MUST_CHECK static int collect_end(struct collector *collector, const struct mu_hash_box *box,
                                     const struct mu_hash_row *row, uint64_t from, uint64_t to,
                                     const uint8_t *bytes, struct mu_error *err) {
    struct mu_hash_cut cut = {.quad = from / MU_HASH_QUAD_BYTES};
    uint64_t place = from % MU_HASH_QUAD_BYTES;
    if (from >= to) {
        return MU_OK;
    }
    cut.has = (uint16_t)(((1u << (to - from)) - 1) << place);
    if (bytes == NULL) {
        mu_hash_row_copy(box, row, from, to, cut.bytes + place);
    } else {
        memcpy(cut.bytes + place, bytes, to - from);
    }
    return collect(collector, &cut, err);
}

MU_MUST_CHECK static int collect_ends(struct collector *collector, const struct mu_hash_box *box,
                                      const uint8_t *ends, struct mu_error *err) {
    struct mu_hash_row row;
    int code = MU_OK;
    mu_hash_row_start(box, 0, &row);
    for (uint64_t i = 0; code == MU_OK && i < box->rows; i++, mu_hash_row_next(box, &row)) {
        uint64_t end = row.begin + box->row_bytes;
        uint64_t first = (row.begin + MU_HASH_QUAD_BYTES - 1) & ~(uint64_t)(MU_HASH_QUAD_BYTES - 1);
        uint64_t after = end & ~(uint64_t)(MU_HASH_QUAD_BYTES - 1);
        const uint8_t *head = ends == NULL ? NULL : ends + i * 2 * MU_HASH_QUAD_BYTES;
        const uint8_t *tail = ends == NULL ? NULL : head + MU_HASH_QUAD_BYTES;
        code = collect_end(collector, box, &row, row.begin, first < end ? first : end, head, err);
        if (code == MU_OK && after >= first) {
            code = collect_end(collector, box, &row, after, end, tail, err);
        }
    }
    return code;
}

int mu_hash_part_of_box(struct mu_hash_part *part, const struct mu_hash_box *box,
                        const struct mu_hash_sums *sums, const uint8_t *ends,
                        struct mu_error *err) {
    struct collector collector;
    int code = MU_OK;
    mu_hash_part_start(part, box->total);
    part->sums = *sums;
    part->bytes = box->rows * box->row_bytes;
    start_collecting(&collector, part);
    if (mu_hash_box_has_ends(box)) {
        code = collect_ends(&collector, box, ends, err);
    }
    return end_collecting(&collector, code, err);
}

int mu_hash_part_of(struct mu_hash_part *part, const struct mu_tensor *tensor, const int64_t *shape,
                    const int64_t *at, struct mu_error *err) {
    struct mu_hash_box box;
    struct mu_hash_sums sums = {0};
    int code = mu_hash_box_of(&box, tensor, shape, at, err);
    if (code != MU_OK) {
        return code;
    }
    mu_hash_box_add_quads(&box, &sums);
    return mu_hash_part_of_box(part, &box, &sums, NULL, err);
}

/* --- parts -------------------------------------------------------------------------------- */

static int by_quad(const void *a, const void *b) {
    const struct mu_hash_cut *left = a, *right = b;
    return (left->quad > right->quad) - (left->quad < right->quad);
}

MU_MUST_CHECK static int check_cut(const struct mu_hash_part *part, const struct mu_hash_cut *cut,
                                   struct mu_error *err) {
    bool is_within = cut->quad <= part->total / MU_HASH_QUAD_BYTES &&
                     (cut->has & ~bytes_of_quad(part, cut->quad)) == 0;
    uint64_t byte = cut->quad * MU_HASH_QUAD_BYTES + (uint64_t)__builtin_ctz(cut->has | 0x10000u);
    return is_within
               ? MU_OK
               : mu_error_set(err, MU_ERR_ARGUMENT, "cut bytes from %llu on, in a whole of %llu",
                              (unsigned long long)byte, (unsigned long long)part->total);
}

int mu_hash_part_from(struct mu_hash_part *part, uint64_t total, uint64_t bytes,
                      const struct mu_hash_sums *sums, struct mu_hash_cut *cuts, size_t count,
                      struct mu_error *err) {
    struct collector collector;
    int code = MU_OK;
    mu_hash_part_start(part, total);
    part->sums = *sums;
    part->bytes = bytes;
    start_collecting(&collector, part);
    if (count > 0) {
        qsort(cuts, count, sizeof(*cuts), by_quad);
    }
    for (size_t i = 0; code == MU_OK && i < count; i++) {
        code = check_cut(part, &cuts[i], err);
        code = code != MU_OK ? code : collect(&collector, &cuts[i], err);
    }
    return end_collecting(&collector, code, err);
}

int mu_hash_part_add(struct mu_hash_part *part, const struct mu_hash_part *a,
                     const struct mu_hash_part *b, struct mu_error *err) {
    struct collector collector;
    int code = MU_OK;
    mu_hash_part_start(part, a->total);
    if (a->total != b->total) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "parts of wholes of %llu and %llu bytes",
                            (unsigned long long)a->total, (unsigned long long)b->total);
    }
    if (__builtin_add_overflow(a->bytes, b->bytes, &part->bytes)) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "parts of more than 2^64 bytes");
    }
    part->sums = a->sums;
    mu_hash_add_sums(&part->sums, &b->sums);
    start_collecting(&collector, part);
    for (size_t i = 0, j = 0; code == MU_OK && (i < a->cut_count || j < b->cut_count);) {
        bool left = j == b->cut_count || (i < a->cut_count && a->cuts[i].quad <= b->cuts[j].quad);
        code = collect(&collector, left ? &a->cuts[i++] : &b->cuts[j++], err);
    }
    return end_collecting(&collector, code, err);
}

int mu_hash_part_check(const struct mu_hash_part *part, struct mu_error *err) {
    if (part->bytes != part->total) {
        return mu_error_set(err, MU_ERR_ARGUMENT, "parts of %llu bytes, not %llu: some are %s",
                            (unsigned long long)part->bytes, (unsigned long long)part->total,
                            part->bytes < part->total ? "missing" : "there twice");
    }
    if (part->cut_count > 0) {
        uint64_t byte = part->cuts[0].quad * MU_HASH_QUAD_BYTES +
                        (uint64_t)__builtin_ctz(~(unsigned)part->cuts[0].has);
        return mu_error_set(err, MU_ERR_ARGUMENT,
                            "bytes from %llu on are missing, and others are there twice",
                            (unsigned long long)byte);
    }
    return MU_OK;
}

int mu_hash_part_close(const struct mu_hash_part *part, struct mu_digest *content,
                       struct mu_error *err) {
    int code = mu_hash_part_check(part, err);
    if (code == MU_OK) {
        *content = mu_hash_close(&part->sums, part->total, mu_hash_keys()->factor);
    }
    return code;
}

/* --- where two differ --------------------------------------------------------------------- */

/* The inverse of an odd number modulo 2^64, by Newton's method: each step doubles the bits. */
static uint64_t inverse(uint64_t odd) {
    uint64_t found = odd; /* right in three bits */
    for (int bits = 3; bits < 64; bits *= 2) {
        found *= 2 - odd * found;
    }
    return found;
}

uint64_t mu_hash_place(const struct mu_hash_part *a, const struct mu_hash_part *b) {
    uint64_t s[MU_HASH_LANES], t[MU_HASH_LANES];
    int best = 0;
    for (int lane = 0; lane < MU_HASH_LANES; lane++) {
        s[lane] = a->sums.s[lane] - b->sums.s[lane];
        t[lane] = a->sums.t[lane] - b->sums.t[lane];
        best = (s[lane] & -s[lane]) - 1 < (s[best] & -s[best]) - 1 ? lane : best;
    }
    if (s[best] == 0) {
        return UINT64_MAX;
    }
    int zeros = __builtin_ctzll(s[best]);
    uint64_t block = ((t[best] >> zeros) * inverse(s[best] >> zeros)) << zeros >> zeros;
    for (int lane = 0; lane < MU_HASH_LANES; lane++) {
        if (t[lane] != block * s[lane]) {
            return UINT64_MAX;
        }
    }
    return block <= (a->total - 1) / MU_HASH_BLOCK_BYTES && a->total > 0 ? block : UINT64_MAX;
}
