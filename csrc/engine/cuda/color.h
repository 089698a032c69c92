/* Converts colours as users write them to the ARGB word of NVTX.
 *
 * The result is 0xAARRGGBB. It is opaque, unless an integer has its own alpha. All functions are
 * pure and thread-safe.
 */
#ifndef MU_COLOR_H
#define MU_COLOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Takes a basic name of CSS (red, navy, ...), a few more that plotting libraries share (orange,
 * cyan, ...), `#rgb` or `#rrggbb`; letters of either case. MU_ERR_ARGUMENT names what came and what
 * is allowed. */
MU_MUST_CHECK int mu_color_parse(const char *text, size_t length, uint32_t *argb,
                                 struct mu_error *err);

/* 0xRRGGBB is opaque; a number above that is taken as 0xAARRGGBB. */
MU_MUST_CHECK int mu_color_from_int(int64_t number, uint32_t *argb, struct mu_error *err);

#endif
