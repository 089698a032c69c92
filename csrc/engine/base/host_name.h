/* What this machine is called. */
#ifndef MU_HOST_NAME_H
#define MU_HOST_NAME_H

#include <stddef.h>

/* The name of this host, empty where the system does not tell it. Bytes that are not UTF-8 become
 * `\xNN`; a name that is too long is cut. */
void mu_host_name(char *out, size_t size);

#endif
