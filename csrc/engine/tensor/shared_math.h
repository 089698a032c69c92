/* Definitions for headers that a C compiler, nvcc and NVRTC all compile.
 *
 * Headers that include this one have the arithmetic on which the processor and the GPU must agree.
 * MU_SHARED declares a function in them. NVRTC has no C library, so the integer types are named
 * here.
 */
#ifndef MU_SHARED_MATH_H
#define MU_SHARED_MATH_H

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#ifdef __CUDACC__
#define MU_SHARED static __host__ __device__ __forceinline__
#else
#define MU_SHARED static inline
#endif

#endif
