/* What the process knows of its own stacks: the layout of its Python, once it has proved right. */
#ifndef MU_STACK_READER_H
#define MU_STACK_READER_H

#include "process_stacks/python_layout.h"

#include <stdbool.h>

enum { MU_STACKS_OFF_BYTES = 160 };

/* Filled once, before other threads see it. */
struct mu_stack_reader {
    struct mu_python_layout layout;
    bool ready;                    /* a stack that was known was read as it is */
    char off[MU_STACKS_OFF_BYTES]; /* why it is not ready */
    int python_major, python_minor;
};

#endif
