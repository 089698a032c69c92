/* MD5 (RFC 1321) of tensors: of their row-major bytes, whatever their strides.
 *
 * Many tensors go side by side through the lanes of vectors, and over the threads of torch's pool;
 * the digests are the same whatever the processor and the threads. MD5 is no protection against
 * someone who means harm: such a one can make two tensors of one digest.
 */
#ifndef MU_MD5_H
#define MU_MD5_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "tensor/tensor.h"

enum { MU_MD5_BYTES = 16 };

struct mu_md5_job {
    const struct mu_tensor *tensor; /* borrowed; on the CPU */
    uint8_t digest[MU_MD5_BYTES];   /* the result */
};

/* Fills in the digest of every job. Contiguous tensors are read where they lie; for the others
 * there are 16 KiB a lane. Thread-safe, as long as nobody writes to the tensors. MU_ERR_NO_MEMORY,
 * never for a single tensor. The caller must not hold the GIL when there is work for several
 * threads. */
MU_MUST_CHECK int mu_md5_batch(struct mu_md5_job *jobs, size_t count, struct mu_error *err);

#endif
