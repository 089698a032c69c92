/* Elements of any type as doubles, or as floats where they fit.
 *
 * Every type but int64 and uint64 fits a double exactly; those two are rounded to the nearest
 * double beyond 2^53. Signs of zero are kept, NaNs stay NaN (with another payload). Pure functions
 * of the bytes, safe on any thread.
 */
#ifndef MU_DECODE_H
#define MU_DECODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

/* Writes mu_dtype_info(dtype)->parts doubles for each of `elements` elements: real and imaginary
 * part of complex ones, the low four bits of float4_e2m1fn_x2 before the high four. `bytes` needs
 * no alignment; a bool is 0 or 1, whatever its byte. */
void mu_decode_doubles(int dtype, const uint8_t *bytes, size_t elements, double *out);

/* The same as floats, for the types below. */
void mu_decode_floats(int dtype, const uint8_t *bytes, size_t elements, float *out);

/* True where every number of `dtype` is a float: for all of 16 bits or fewer, and float32. */
bool mu_decode_fits_float(int dtype);

/* The variants, one for each instruction set, for the tests. `part` is that of mu_dtype_info. */
void mu_decode_doubles_portable(int part, const uint8_t *bytes, size_t numbers, double *out);
void mu_decode_floats_portable(int part, const uint8_t *bytes, size_t numbers, float *out);
#ifdef __x86_64__
void mu_decode_doubles_avx2(int part, const uint8_t *bytes, size_t numbers, double *out);
void mu_decode_floats_avx2(int part, const uint8_t *bytes, size_t numbers, float *out);
#elif defined(__aarch64__)
void mu_decode_doubles_neon(int part, const uint8_t *bytes, size_t numbers, double *out);
void mu_decode_floats_neon(int part, const uint8_t *bytes, size_t numbers, float *out);
#endif

#endif
