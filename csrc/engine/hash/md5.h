/* MD5 (RFC 1321) of tensors: of their row-major bytes, whatever their strides.
 *
 * Many tensors are hashed in parallel, in the lanes of vectors and on the threads of torch's pool.
 * The digests do not depend on the processor or the threads. MD5 does not protect against an
 * attacker, who can make two tensors with the same digest.
 */
#ifndef MU_MD5_H
#define MU_MD5_H

#include <stddef.h>

#include "base/error.h"
#include "hash/md5_job.h"

/* Fills in the digest of every job. Contiguous tensors are read in place; others need 16 KiB for
 * each lane. Thread-safe while nobody writes to the tensors. MU_ERR_NO_MEMORY, but never for a
 * single tensor. The caller must not hold the GIL when there is work for several threads. */
MU_MUST_CHECK int mu_md5_batch(struct mu_md5_job *jobs, size_t count, struct mu_error *err);

#endif
