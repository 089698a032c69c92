/* The blocks of 64 bytes that MD5 makes of a tensor, its padding included. */
#ifndef MU_MD5_FEED_H
#define MU_MD5_FEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

enum { MU_MD5_BLOCK = 64, MU_MD5_SCRATCH = 16384 };

/* The state for a tensor that is not contiguous. */
struct mu_md5_strided {
    struct mu_tensor_walk walk;
    uint8_t scratch[MU_MD5_SCRATCH];
};

struct mu_md5_feed {
    const uint8_t *at;              /* the next block: in the tensor, in `strided` or in `tail` */
    size_t blocks;                  /* that are contiguous there */
    struct mu_md5_strided *strided; /* borrowed; NULL where the tensor is in one piece */
    const struct mu_tensor *tensor; /* borrowed; NULL when all of its bytes have been handed out */
    size_t rest;                    /* bytes in `tail` */
    uint64_t bytes;                 /* of the whole tensor */
    bool padded;
    uint8_t tail[2 * MU_MD5_BLOCK]; /* the bytes after the last whole block, and the padding */
};

/* Starts at the first blocks of `tensor`; there is at least one. `strided` is used when the tensor
 * is not contiguous. The feed borrows both until it has ended. */
void mu_md5_feed_start(struct mu_md5_feed *feed, const struct mu_tensor *tensor,
                       struct mu_md5_strided *strided);

/* Removes the first `blocks` blocks, no more than there are. False at the end of the message. */
bool mu_md5_feed_advance(struct mu_md5_feed *feed, size_t blocks);

#endif
