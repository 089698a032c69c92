/* Pressure of the own cgroup and of the host: trees as Kubernetes and systemd lay them out, written
 * by hand.
 */
#include "host/pressure.h"

#include "tests/host/tree.h"

#define PRESSURE(total)                                                                            \
    "some avg10=0.00 avg60=1.50 avg300=0.00 total=" total "\n"                                     \
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=3\n"

static char host[TREE_TEXT_BYTES];

static void write_host(void) {
    snprintf(host, sizeof(host), "%s/pressure", tree_folder);
    tree_write("pressure/cpu", PRESSURE("70"));
    tree_write("pressure/io", PRESSURE("80"));
    tree_write("pressure/memory", PRESSURE("90"));
}

static void test_version_2(void) {
    struct mu_pressure pressure;
    struct mu_pressure_reading reading;
    tree_write("cgroup", "0::/kubepods/pod7\n");
    tree_mounts("30 29 0:26 / @/v2 rw - cgroup2 cgroup2 rw\n");
    tree_write("v2/kubepods/pod7/cgroup.type", "domain\n");
    tree_write("v2/kubepods/pod7/cpu.pressure", PRESSURE("1234"));
    tree_write("v2/kubepods/pod7/io.pressure", PRESSURE("5"));
    write_host();
    mu_pressure_open(&pressure, tree_folder, host);
    mu_pressure_read(&pressure, &reading);
    const uint64_t wanted[MU_PRESSURES] = {1234000, 5000, 70000, 80000, 90000};
    for (int i = 0; i < MU_PRESSURES; i++) {
        CHECK(reading.known[i]);
        CHECK_INT(reading.ns[i], wanted[i]);
    }
    tree_write("v2/kubepods/pod7/io.pressure", PRESSURE("6"));
    mu_pressure_read(&pressure, &reading);
    CHECK_INT(reading.ns[MU_PRESSURE_IO], 6000);
    mu_pressure_close(&pressure);
}

/* The root's is the whole host's, and is not taken for the own. */
static void test_the_root_of_version_2(void) {
    struct mu_pressure pressure;
    struct mu_pressure_reading reading;
    tree_write("cgroup", "0::/\n");
    tree_mounts("30 29 0:26 / @/host rw - cgroup2 cgroup2 rw\n");
    tree_write("host/cpu.pressure", PRESSURE("1"));
    write_host();
    mu_pressure_open(&pressure, tree_folder, host);
    mu_pressure_read(&pressure, &reading);
    CHECK(!reading.known[MU_PRESSURE_CPU]);
    CHECK(!reading.known[MU_PRESSURE_IO]);
    CHECK(reading.known[MU_PRESSURE_HOST_CPU]);
    mu_pressure_close(&pressure);
}

static void test_what_the_kernel_does_not_say(void) {
    struct mu_pressure pressure;
    struct mu_pressure_reading reading;
    tree_write("cgroup", "3:cpu:/slurm\n");
    tree_mounts("33 31 0:30 / @/v1 rw - cgroup cgroup rw,cpu\n");
    tree_write("pressure/io", "nonsense\n");
    tree_write("pressure/memory", "some avg10=0.00\n");
    mu_pressure_open(&pressure, tree_folder, host);
    mu_pressure_read(&pressure, &reading);
    CHECK(!reading.known[MU_PRESSURE_CPU]);
    CHECK(!reading.known[MU_PRESSURE_HOST_IO]);
    CHECK(!reading.known[MU_PRESSURE_HOST_MEMORY]);
    mu_pressure_close(&pressure);
    mu_pressure_open(&pressure, tree_folder, "/nowhere");
    mu_pressure_read(&pressure, &reading);
    for (int i = 0; i < MU_PRESSURES; i++) {
        CHECK(!reading.known[i]);
    }
    mu_pressure_close(&pressure);
}

int main(void) {
    tree_make();
    test_version_2();
    test_the_root_of_version_2();
    test_what_the_kernel_does_not_say();
    tree_remove();
    return check_report();
}
