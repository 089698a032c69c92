/* Lack of memory in cgroups: trees as Kubernetes, SLURM and systemd lay them out, written by hand.
 */
#include "host/memory_cgroup.h"

#include "tests/host/tree.h"

static void test_version_2(void) {
    struct mu_memory_cgroup memory;
    uint64_t met = 0, stalled = 0, refaults = 0;
    tree_write("cgroup", "0::/kubepods/pod7\n");
    tree_mounts("30 29 0:26 / @/v2 rw - cgroup2 cgroup2 rw\n");
    tree_write("v2/kubepods/pod7/cgroup.type", "domain\n");
    tree_write("v2/kubepods/pod7/memory.events", "low 9\nhigh 3\nmax 4\noom 0\noom_kill 0\n");
    tree_write("v2/kubepods/memory.events", "low 0\nhigh 0\nmax 5\noom 0\noom_kill 0\n");
    tree_write("v2/kubepods/pod7/memory.pressure",
               "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\n"
               "full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n");
    tree_write("v2/kubepods/pod7/memory.stat",
               "anon 7\nworkingset_refault_anon 2\nworkingset_refault_file 40\n"
               "total_workingset_refault_file 8\n");
    mu_memory_cgroup_open(&memory, tree_folder);
    CHECK(mu_memory_limits_met(&memory, &met));
    CHECK_INT(met, 12);
    CHECK(mu_memory_stalled_ns(&memory, &stalled));
    CHECK_INT(stalled, 1234000);
    CHECK(mu_memory_refaults(&memory, &refaults));
    CHECK_INT(refaults, 42);
    mu_memory_cgroup_close(&memory);
}

/* The pressure of the root of all cgroups is the whole host's. */
static void test_the_root_of_version_2(void) {
    struct mu_memory_cgroup memory;
    uint64_t number = 77;
    tree_write("cgroup", "0::/\n");
    tree_mounts("30 29 0:26 / @/host rw - cgroup2 cgroup2 rw\n");
    tree_write("host/memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n");
    mu_memory_cgroup_open(&memory, tree_folder);
    CHECK(!mu_memory_stalled_ns(&memory, &number));
    CHECK(!mu_memory_limits_met(&memory, &number));
    CHECK(!mu_memory_refaults(&memory, &number));
    CHECK_INT(number, 77);
    mu_memory_cgroup_close(&memory);
}

static void test_slurm_version_1(void) {
    struct mu_memory_cgroup memory;
    uint64_t met = 0, refaults = 0;
    tree_write("cgroup", "4:memory:/slurm/job_3/step_0\n3:cpu:/slurm\n");
    tree_mounts("33 31 0:30 / @/v1mem rw,relatime - cgroup cgroup rw,memory\n");
    tree_write("v1mem/slurm/job_3/step_0/memory.failcnt", "6\n");
    tree_write("v1mem/slurm/job_3/memory.failcnt", "20\n");
    tree_write("v1mem/slurm/job_3/step_0/memory.stat",
               "cache 1\nworkingset_refault 5\ntotal_workingset_refault 9\n");
    mu_memory_cgroup_open(&memory, tree_folder);
    CHECK(mu_memory_limits_met(&memory, &met));
    CHECK_INT(met, 26);
    CHECK(!mu_memory_stalled_ns(&memory, &met));
    CHECK(mu_memory_refaults(&memory, &refaults));
    CHECK_INT(refaults, 5);
    tree_write("v1mem/slurm/job_3/step_0/memory.failcnt", "8\n");
    CHECK(mu_memory_limits_met(&memory, &met));
    CHECK_INT(met, 28);
    mu_memory_cgroup_close(&memory);
}

/* Files without the lines that are looked for. */
static void test_nothing_is_known(void) {
    struct mu_memory_cgroup memory;
    uint64_t number = 77;
    tree_write("cgroup", "0::/odd\n");
    tree_mounts("30 29 0:26 / @/odd rw - cgroup2 cgroup2 rw\n");
    tree_write("odd/odd/cgroup.type", "domain\n");
    tree_write("odd/odd/memory.events", "low 3\n");
    tree_write("odd/odd/memory.pressure", "some avg10=0.00\n");
    tree_write("odd/odd/memory.stat", "");
    mu_memory_cgroup_open(&memory, tree_folder);
    CHECK(!mu_memory_limits_met(&memory, &number));
    CHECK(!mu_memory_stalled_ns(&memory, &number));
    CHECK(!mu_memory_refaults(&memory, &number));
    mu_memory_cgroup_close(&memory);
    mu_memory_cgroup_open(&memory, "/no/such/folder");
    CHECK(!mu_memory_limits_met(&memory, &number));
    CHECK_INT(number, 77);
    mu_memory_cgroup_close(&memory);
}

int main(void) {
    tree_make();
    test_version_2();
    test_the_root_of_version_2();
    test_slurm_version_1();
    test_nothing_is_known();
    tree_remove();
    return check_report();
}
