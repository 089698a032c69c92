/* Floats of 8 bits by their byte. */
#ifndef MU_BYTE_FLOATS_H
#define MU_BYTE_FLOATS_H

/* The values of the 256 bytes of `dtype`, a float of 8 bits. Made at the first use, on any
 * thread. */
const float *mu_byte_float_values(int dtype);

#endif
