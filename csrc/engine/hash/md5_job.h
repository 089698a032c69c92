/* A tensor whose MD5 is wanted, and the result. */
#ifndef MU_MD5_JOB_H
#define MU_MD5_JOB_H

#include <stdint.h>

#include "tensor/tensor.h"

enum { MU_MD5_BYTES = 16 };

struct mu_md5_job {
    const struct mu_tensor *tensor; /* borrowed; on the CPU */
    uint8_t digest[MU_MD5_BYTES];   /* the result */
};

#endif
