/* Writes pieces of memory one after the other, with few system calls. */
#ifndef MU_WRITE_PIECES_H
#define MU_WRITE_PIECES_H

#include <stddef.h>
#include <sys/uio.h>

#include "base/error.h"

/* Writes all bytes of `count` pieces, whose places and lengths it changes. Begins again after a
 * signal. MU_ERR_IO when the system cannot write: some of the bytes may be written then. */
MU_MUST_CHECK int mu_write_pieces(int fd, struct iovec *pieces, size_t count, struct mu_error *err);

#endif
