/* Windows of steps as bytes: what each stage took in so many steps, in blocks that follow one
 * another in a file.
 *
 *   head (96 bytes) | payload | check | bytes
 *
 * The payload of a window is a bitmap of the paths that ran in it, in words of 32, and a cell of 12
 * bytes for each. That of names says what paths are called; they come before the first window that
 * has them. `bytes` is the length of the whole block and stands at both of its ends, so that a
 * reader finds the newest blocks from the end of a file. Numbers are in the byte order of the
 * machine; with another one the magic number differs. All pointers are borrowed.
 */
#ifndef MU_WINDOW_BLOCK_H
#define MU_WINDOW_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MU_WINDOW_MAGIC UINT32_C(0x4e57554d) /* "MUWN" */

enum {
    MU_WINDOW_VERSION = 1,
    MU_WINDOW_PATHS_MAX = 256, /* of a track; what is beyond them counts as "(other)", path 0 */
    MU_WINDOW_CELL_BYTES = 12,
    MU_WINDOW_HEAD_BYTES = 96,
    MU_WINDOW_END_BYTES = 8,
    MU_WINDOW_NAME_MAX = 255,
    MU_WINDOW_BLOCK_MAX = 8192,
};

enum mu_window_kind {
    MU_WINDOW_STEPS = 1,
    MU_WINDOW_NAMES = 2,
};

/* Steps of one track: the stages of one timer on one thread, in one attempt. Times in ns. */
struct mu_window_head {
    uint32_t magic;
    uint32_t bytes;
    uint16_t version;
    uint16_t kind;    /* enum mu_window_kind; of names, what is below `cells` is 0 */
    uint32_t attempt; /* from 1 */
    uint32_t track;   /* of the attempt, from 0 */
    uint32_t width;   /* steps of a whole window */
    uint32_t steps;   /* that were recorded */
    uint32_t cells;   /* of names: how many */
    int64_t first_step, last_step;
    int64_t begin_ns;      /* of the first step, Unix time */
    int64_t mean_begin_ns; /* the mean of all begins, since begin_ns */
    uint64_t sum_ns, max_ns;
    uint64_t untimed_sum_ns, untimed_max_ns; /* in no stage */
};

_Static_assert(sizeof(struct mu_window_head) == MU_WINDOW_HEAD_BYTES, "a head has 96 bytes");

/* What a stage took of a window's steps, without the stages inside it. begin, end: the means of its
 * first begin and of its last end since the step's begin, as parts of a mean step. */
struct mu_window_cell {
    uint32_t count; /* steps that had it */
    double sum_ns, max_ns;
    double begin, end;
};

/* Codes of 16 bits: `max_ns` is good to 1 part in 2^11, `begin` and `end` to 1 in 2^16 of a step,
 * `sum_ns` to 1 in 2^24. Counts above 65,535 are that. */
void mu_window_cell_encode(const struct mu_window_cell *cell, char out[MU_WINDOW_CELL_BYTES]);
void mu_window_cell_decode(const char in[MU_WINDOW_CELL_BYTES], struct mu_window_cell *cell);

/* Fills in what depends on the length, and adds the end. The payload follows the head in `block`.
 */
void mu_window_block_seal(char *block, struct mu_window_head *head, size_t payload_bytes);

/* Whether a whole block, which is not damaged, begins here; nothing of it may be trusted before. */
bool mu_window_block_check(const char *bytes, size_t available, struct mu_window_head *head);

/* The next whole block from `*at` on; what is damaged before it is left out. `*at` becomes its end.
 * NULL, with `*at` as it was, where there is none. */
const char *mu_window_block_next(const char *bytes, size_t available, size_t *at,
                                 struct mu_window_head *head);

/* How many bytes of the block that ends after `available` bytes; 0 where none can. */
size_t mu_window_block_before(const char *bytes, size_t available);

#endif
