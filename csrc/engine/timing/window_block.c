#include "timing/window_block.h"

#include <string.h>

#include "base/hash_table.h"

enum { MANTISSA_BITS = 10, CODE_MAX = UINT16_MAX };

struct end {
    uint32_t check;
    uint32_t bytes;
};

/* As a floating point number of 6 and 10 bits. */
static uint16_t code_of(double ns) {
    uint64_t whole = ns < 0 ? 0 : ns >= (double)INT64_MAX ? INT64_MAX : (uint64_t)ns;
    if (whole >> MANTISSA_BITS == 0) {
        return (uint16_t)whole;
    }
    unsigned octave = 63u - (unsigned)__builtin_clzll(whole) - MANTISSA_BITS;
    uint64_t below = (whole >> octave) - (UINT64_C(1) << MANTISSA_BITS);
    return (uint16_t)(((uint64_t)(octave + 1) << MANTISSA_BITS) + below);
}

static double middle_of(uint16_t code) {
    unsigned octave = code >> MANTISSA_BITS;
    if (octave <= 1) {
        return code;
    }
    double width = (double)(UINT64_C(1) << (octave - 1));
    uint64_t below = (code & ((1u << MANTISSA_BITS) - 1)) + (1u << MANTISSA_BITS);
    return ((double)below + 0.5) * width;
}

static uint16_t share_code(double share) {
    double code = share * CODE_MAX + 0.5;
    return code >= CODE_MAX ? CODE_MAX : code > 0 ? (uint16_t)code : 0;
}

struct cell_bytes {
    uint16_t count, max, begin, end;
    float sum;
};

_Static_assert(sizeof(struct cell_bytes) == MU_WINDOW_CELL_BYTES, "a cell has 12 bytes");

void mu_window_cell_encode(const struct mu_window_cell *cell, char out[MU_WINDOW_CELL_BYTES]) {
    struct cell_bytes coded = {
        .count = cell->count > UINT16_MAX ? UINT16_MAX : (uint16_t)cell->count,
        .max = code_of(cell->max_ns),
        .begin = share_code(cell->begin),
        .end = share_code(cell->end),
        .sum = (float)cell->sum_ns,
    };
    memcpy(out, &coded, sizeof(coded));
}

void mu_window_cell_decode(const char in[MU_WINDOW_CELL_BYTES], struct mu_window_cell *cell) {
    struct cell_bytes coded;
    memcpy(&coded, in, sizeof(coded));
    *cell = (struct mu_window_cell){
        .count = coded.count,
        .sum_ns = (double)coded.sum,
        .max_ns = middle_of(coded.max),
        .begin = coded.begin / (double)CODE_MAX,
        .end = coded.end / (double)CODE_MAX,
    };
}

static uint32_t check_of(const char *block, size_t bytes) {
    return mu_hash_fold(mu_hash_bytes(block, bytes));
}

void mu_window_block_seal(char *block, struct mu_window_head *head, size_t payload_bytes) {
    size_t checked = MU_WINDOW_HEAD_BYTES + payload_bytes;
    head->magic = MU_WINDOW_MAGIC;
    head->version = MU_WINDOW_VERSION;
    head->bytes = (uint32_t)(checked + MU_WINDOW_END_BYTES);
    memcpy(block, head, sizeof(*head));
    struct end end = {check_of(block, checked), head->bytes};
    memcpy(block + checked, &end, sizeof(end));
}

static bool is_length(size_t bytes) {
    return bytes >= MU_WINDOW_HEAD_BYTES + MU_WINDOW_END_BYTES && bytes <= MU_WINDOW_BLOCK_MAX;
}

bool mu_window_block_check(const char *bytes, size_t available, struct mu_window_head *head) {
    struct end end;
    if (available < MU_WINDOW_HEAD_BYTES) {
        return false;
    }
    memcpy(head, bytes, sizeof(*head));
    if (head->magic != MU_WINDOW_MAGIC || !is_length(head->bytes) || head->bytes > available) {
        return false;
    }
    size_t checked = head->bytes - MU_WINDOW_END_BYTES;
    memcpy(&end, bytes + checked, sizeof(end));
    return end.bytes == head->bytes && end.check == check_of(bytes, checked);
}

const char *mu_window_block_next(const char *bytes, size_t available, size_t *at,
                                 struct mu_window_head *head) {
    const uint32_t magic = MU_WINDOW_MAGIC;
    size_t from = *at;
    while (from < available) {
        if (mu_window_block_check(bytes + from, available - from, head)) {
            *at = from + head->bytes;
            return bytes + from;
        }
        const char *found = memmem(bytes + from + 1, available - from - 1, &magic, sizeof(magic));
        if (found == NULL) {
            return NULL;
        }
        from = (size_t)(found - bytes);
    }
    return NULL;
}

size_t mu_window_block_before(const char *bytes, size_t available) {
    struct end end;
    if (available < MU_WINDOW_HEAD_BYTES + MU_WINDOW_END_BYTES) {
        return 0;
    }
    memcpy(&end, bytes + available - sizeof(end), sizeof(end));
    return is_length(end.bytes) && end.bytes <= available ? end.bytes : 0;
}
