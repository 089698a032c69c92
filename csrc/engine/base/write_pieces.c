#include "base/write_pieces.h"

#include <errno.h>

enum { PIECES_A_CALL = 1024 }; /* Linux takes no more */

/* Moves past what was written, and past pieces without bytes. */
static void skip(struct iovec **pieces, size_t *count, size_t written) {
    while (*count > 0 && written >= (*pieces)->iov_len) {
        written -= (*pieces)->iov_len;
        (*pieces)++;
        (*count)--;
    }
    if (written > 0) {
        (*pieces)->iov_base = (char *)(*pieces)->iov_base + written;
        (*pieces)->iov_len -= written;
    }
}

int mu_write_pieces(int fd, struct iovec *pieces, size_t count, struct mu_error *err) {
    skip(&pieces, &count, 0);
    while (count > 0) {
        ssize_t written = writev(fd, pieces, count < PIECES_A_CALL ? (int)count : PIECES_A_CALL);
        if (written == 0) {
            errno = EIO;
        }
        if (written == 0 || (written < 0 && errno != EINTR)) {
            return mu_error_sys(err, "write", NULL);
        }
        skip(&pieces, &count, written < 0 ? 0 : (size_t)written);
    }
    return MU_OK;
}
