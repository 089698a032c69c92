/* Few names, numbered as they come: tags of timers, names of counters.
 *
 * The list owns copies of its names. At most MU_NAMES_MAX of them; a name beyond these, or one that
 * is empty, is number 0, which is "". One thread at a time.
 */
#ifndef MU_NAME_LIST_H
#define MU_NAME_LIST_H

#include "base/error.h"
#include "csv/metadata.h"

#include <stdint.h>

enum { MU_NAMES_MAX = 64 };

struct mu_name_list {
    uint32_t count; /* with number 0 */
    uint32_t last;  /* the number that was asked for last */
    struct mu_span names[MU_NAMES_MAX];
};

void mu_name_list_init(struct mu_name_list *list);
void mu_name_list_reset(struct mu_name_list *list);

/* The number of `head`, or of `head.tail` where `tail` is not empty. */
MU_MUST_CHECK int mu_name_list_find(struct mu_name_list *list, struct mu_span head,
                                    struct mu_span tail, uint32_t *number, struct mu_error *err);

#endif
