/* MD5 of several tensors side by side on one thread. Internal to md5*.c and their tests. */
#ifndef MU_MD5_LANES_H
#define MU_MD5_LANES_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "hash/md5_feed.h"
#include "hash/md5_job.h"

enum { MU_MD5_LANES_MAX = 32 };

/* Adds `blocks` blocks, one at least, of every lane's message to the lane's state. `states` holds
 * the first word of all lanes, then the second, third and fourth. */
typedef void (*mu_md5_run)(uint32_t *states, const uint8_t *const *data, size_t blocks);

struct mu_md5_width {
    mu_md5_run run;
    int lanes;
    int speed; /* of all lanes together, in any unit */
};

/* What one processor runs. The fewer the lanes, the faster is each of them. */
struct mu_md5_kernel {
    int lanes; /* the most; 1: only the scalar code */
    int count;
    struct mu_md5_width widths[3]; /* `count` of them, the widest first */
};

void mu_md5_run_scalar(uint32_t *states, const uint8_t *const *data, size_t blocks);
void mu_md5_run16_avx2(uint32_t *states, const uint8_t *const *data, size_t blocks);
void mu_md5_run8_avx2(uint32_t *states, const uint8_t *const *data, size_t blocks);
void mu_md5_run32_avx512(uint32_t *states, const uint8_t *const *data, size_t blocks);
void mu_md5_run16_avx512(uint32_t *states, const uint8_t *const *data, size_t blocks);
void mu_md5_run8_avx512(uint32_t *states, const uint8_t *const *data, size_t blocks);
void mu_md5_run16_neon(uint32_t *states, const uint8_t *const *data, size_t blocks);
void mu_md5_run8_neon(uint32_t *states, const uint8_t *const *data, size_t blocks);

/* The number that each step of the lanes adds, less 1 in the last round. They are not in the
 * kernels' files: gcc would make each number that it knows with three instructions instead of
 * loading it with one. */
extern const uint32_t mu_md5_addends[64];

/* The fastest that this processor runs. */
struct mu_md5_kernel mu_md5_best(void);

/* As mu_md5_batch, with the kernel given. */
MU_MUST_CHECK int mu_md5_batch_with(struct mu_md5_kernel kernel, struct mu_md5_job *jobs,
                                    size_t count, struct mu_error *err);

/* A list of messages, the longest first. */
struct mu_md5_item {
    struct mu_md5_job *job; /* borrowed */
    int64_t bytes;
    struct mu_md5_item *next; /* borrowed */
};

struct mu_md5_lane {
    struct mu_md5_job *job;   /* borrowed; NULL: the lane is idle */
    struct mu_md5_feed *feed; /* borrowed: one of the thread's */
};

/* The lanes of one thread. */
struct mu_md5_lanes {
    uint32_t states[4 * MU_MD5_LANES_MAX];
    const uint8_t *data[MU_MD5_LANES_MAX];
    struct mu_md5_lane of[MU_MD5_LANES_MAX];
    struct mu_md5_feed feeds[MU_MD5_LANES_MAX];
    struct mu_md5_strided *strided; /* owned by the caller: one a lane; NULL: none is needed */
};

/* Fills in the digests of a list. A single message is hashed by the scalar code. Of `lanes` only
 * `strided` must be set. */
void mu_md5_lanes_run(struct mu_md5_lanes *lanes, struct mu_md5_kernel kernel,
                      const struct mu_md5_item *list);

/* Fills in the digest of one tensor. It uses no memory but the stack. */
void mu_md5_one(struct mu_md5_job *job);

#endif
