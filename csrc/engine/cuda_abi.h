/* The part of the CUDA driver's ABI that is used here.
 *
 * With the header of the package nvidia-cuda-runtime the types are NVIDIA's own. Without it the
 * same ones are declared below, after cuda.h of CUDA 13.0: only names, values and layouts that the
 * driver has kept since CUDA 11.
 */
#ifndef MU_CUDA_ABI_H
#define MU_CUDA_ABI_H

#ifdef MU_HAVE_CUDA_HEADERS

#include <cuda.h>

#else

typedef enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
} CUresult;

typedef enum { CU_STREAM_CAPTURE_STATUS_NONE = 0 } CUstreamCaptureStatus;
typedef enum { CU_STREAM_CAPTURE_MODE_RELAXED = 2 } CUstreamCaptureMode;
typedef enum { CU_EVENT_DEFAULT = 0 } CUevent_flags;

typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

#endif

#endif
