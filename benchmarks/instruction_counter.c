/* A plugin for QEMU: at the end it writes to stderr how many instructions the program has run, on
 * one line, "instructions N". For programs of one thread.
 *
 * QEMU comes without its header in Debian, so that what is used of it is declared here. Source:
 * include/qemu/qemu-plugin.h of QEMU 7.2, version 1 of its interface.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define EXPORTED __attribute__((visibility("default")))

enum { READS_NO_REGISTERS = 0 };

struct qemu_plugin_tb; /* instructions that run one after the other */

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t plugin,
                                           void (*translated)(uint64_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block,
                                          void (*runs)(unsigned, void *), int flags, void *context);
void qemu_plugin_register_atexit_cb(uint64_t plugin, void (*ends)(uint64_t, void *), void *context);

EXPORTED extern const int qemu_plugin_version;
const int qemu_plugin_version = 1;

static uint64_t instructions;

static void add(unsigned processor, void *count) {
    (void)processor;
    instructions += (uintptr_t)count;
}

static void on_translated(uint64_t plugin, struct qemu_plugin_tb *block) {
    (void)plugin;
    qemu_plugin_register_vcpu_tb_exec_cb(block, add, READS_NO_REGISTERS,
                                         (void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

static void on_end(uint64_t plugin, void *context) {
    (void)plugin;
    (void)context;
    fprintf(stderr, "instructions %" PRIu64 "\n", instructions);
}

EXPORTED int qemu_plugin_install(uint64_t plugin, const void *info, int argc, char **argv) {
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(plugin, on_translated);
    qemu_plugin_register_atexit_cb(plugin, on_end, NULL);
    return 0;
}
