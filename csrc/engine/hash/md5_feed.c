#include "hash/md5_feed.h"

#include <string.h>

/* The next bytes of the tensor; 0 in `*bytes` when there are no more. All pieces but the last one
 * are whole blocks. */
static const uint8_t *next_piece(struct mu_md5_feed *feed, size_t *bytes) {
    *bytes = 0;
    if (feed->tensor == NULL) {
        return NULL;
    }
    if (feed->strided != NULL) {
        return mu_tensor_walk_next(&feed->strided->walk, feed->strided->scratch, MU_MD5_SCRATCH,
                                   bytes);
    }
    const uint8_t *all = feed->tensor->data;
    *bytes = (size_t)feed->bytes;
    feed->tensor = NULL;
    return all;
}

/* A one, zeros up to the last eight bytes of a block, and the length of the message in bits. */
static void pad(struct mu_md5_feed *feed) {
    uint64_t bits = feed->bytes * 8;
    feed->blocks = feed->rest < MU_MD5_BLOCK - sizeof bits ? 1 : 2;
    size_t end = feed->blocks * MU_MD5_BLOCK - sizeof bits;
    feed->tail[feed->rest] = 0x80;
    memset(feed->tail + feed->rest + 1, 0, end - feed->rest - 1);
    memcpy(feed->tail + end, &bits, sizeof bits);
    feed->at = feed->tail;
    feed->padded = true;
}

static bool next_blocks(struct mu_md5_feed *feed) {
    if (feed->padded) {
        return false;
    }
    size_t bytes;
    feed->at = next_piece(feed, &bytes);
    feed->blocks = bytes / MU_MD5_BLOCK;
    if (bytes % MU_MD5_BLOCK != 0) {
        feed->rest = bytes % MU_MD5_BLOCK;
        memcpy(feed->tail, feed->at + feed->blocks * MU_MD5_BLOCK, feed->rest);
        feed->tensor = NULL;
    }
    if (feed->blocks == 0) {
        pad(feed);
    }
    return true;
}

void mu_md5_feed_start(struct mu_md5_feed *feed, const struct mu_tensor *tensor,
                       struct mu_md5_strided *strided) {
    feed->tensor = tensor;
    feed->strided = mu_tensor_is_contiguous(tensor) ? NULL : strided;
    feed->bytes = (uint64_t)mu_tensor_bytes(tensor);
    feed->rest = 0;
    feed->padded = false;
    if (feed->strided != NULL) {
        mu_tensor_walk_start(&strided->walk, tensor, 0, tensor->elements);
    }
    next_blocks(feed);
}

bool mu_md5_feed_advance(struct mu_md5_feed *feed, size_t blocks) {
    feed->blocks -= blocks;
    if (feed->blocks == 0) {
        return next_blocks(feed);
    }
    feed->at += blocks * MU_MD5_BLOCK;
    return true;
}
