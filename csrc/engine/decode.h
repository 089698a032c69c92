/* Elements of any type as doubles.
 *
 * Every type but int64 and uint64 fits a double exactly; those two are rounded to the nearest
 * double beyond 2^53. Signs of zero are kept, NaNs stay NaN (with another payload). Pure functions
 * of the bytes, safe on any thread.
 */
#ifndef MU_DECODE_H
#define MU_DECODE_H

#include <stddef.h>
#include <stdint.h>

/* Writes mu_dtype_info(dtype)->parts doubles for each of `elements` elements: real and imaginary
 * part of complex ones, the low four bits of float4_e2m1fn_x2 before the high four. `bytes` needs
 * no alignment; a bool is 0 or 1, whatever its byte. */
void mu_decode_doubles(int dtype, const uint8_t *bytes, size_t elements, double *out);

/* The same in one instruction set each, for the tests. */
void mu_decode_doubles_portable(int dtype, const uint8_t *bytes, size_t elements, double *out);

/* float16, bfloat16 and their complex only: `numbers` values of `part`. Needs AVX2 and F16C. */
void mu_decode_halves_avx2(int part, const uint8_t *bytes, size_t numbers, double *out);

#endif
