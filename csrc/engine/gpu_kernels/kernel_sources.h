/* The sources of the GPU kernels. csrc/embed.py writes them at build time. */
#ifndef MU_KERNEL_SOURCES_H
#define MU_KERNEL_SOURCES_H

struct mu_kernel_source {
    const char *name; /* "hash.cu", or that of a header as it is included */
    const char *text;
};

extern const struct mu_kernel_source mu_kernel_sources[];
extern const int mu_kernel_source_count;

/* 32 hex digits that change whenever one of them does. */
extern const char mu_kernel_sources_digest[];

#endif
