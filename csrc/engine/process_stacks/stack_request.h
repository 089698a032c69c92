/* Requests for stacks, as the control file of a run has them: under "stacks", one string each, of
 * four words: "<id> <ranks> <milliseconds> <hertz>".
 *
 * The ranks are numbers and ranges such as 0,3-7, or * for all. 0 milliseconds ask for one dump,
 * more of them for a profile of that length.
 */
#ifndef MU_STACK_REQUEST_H
#define MU_STACK_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MU_STACK_ID_BYTES = 81,
    MU_STACK_HZ_MAX = 1000,
    MU_STACK_MILLISECONDS_MAX = 600000,
    MU_STACK_ANY_RANK = -1,
};

struct mu_stack_request {
    char id[MU_STACK_ID_BYTES]; /* letters, digits, dots, dashes, underscores: a part of a name */
    uint32_t milliseconds;      /* 0: one dump */
    uint32_t hz;                /* at least 1 */
};

/* Called for each request that is for the rank, or for any.
 * Its struct lives as long as the call. */
typedef void mu_stack_request_each(void *context, const struct mu_stack_request *request);

/* Reads a control file. Requests that are broken are left out, and so is what is not a control
 * file: the training says what is wrong with it when it reads it. */
void mu_stack_requests(const char *text, size_t length, int rank, mu_stack_request_each *each,
                       void *context);

/* Whether a control file asks for stacks, and for nothing else. */
bool mu_stack_requests_alone(const char *text, size_t length);

#endif
