/* The table of the module: its subsystems, in the order in which they are set up. */
#include "core/state.h"

static int traverse(PyObject *module, visitproc visit, void *arg) {
    struct mu_state *state = mu_state_of(module);
    Py_VISIT(state->format_error);
    Py_VISIT(state->warning_hook);
    Py_VISIT(state->step_hook);
    Py_VISIT(state->timer_type);
    Py_VISIT(state->run_stages_type);
    Py_VISIT(state->bucket_hook_type);
    Py_VISIT(state->bucket_times_type);
    Py_VISIT(state->stage_type);
    Py_VISIT(state->no_op_stage_type);
    Py_VISIT(state->no_op_stage);
    Py_VISIT(state->hook_event_type);
    Py_VISIT(state->call_type);
    Py_VISIT(state->calls);
    Py_VISIT(state->key_iter);
    Py_VISIT(state->key_microbatch);
    for (int i = 0; i < MU_PY_HOOK_FIELDS; i++) {
        Py_VISIT(state->hook_event_names[i]);
    }
    Py_VISIT(state->forward_passes_type);
    Py_VISIT(state->digest_type);
    Py_VISIT(state->sums_type);
    Py_VISIT(state->tensor_diff_type);
    Py_VISIT(state->tensor_stats_type);
    Py_VISIT(state->nan_inf_count_type);
    Py_VISIT(state->time_recorder_type);
    Py_VISIT(state->timed_block_type);
    Py_VISIT(state->recorder_stack);
    Py_VISIT(state->timing_switch);
    Py_VISIT(state->module_hook_type);
    return mu_py_exchange_traverse(&state->exchange, visit, arg);
}

static int clear(PyObject *module) {
    struct mu_state *state = mu_state_of(module);
    Py_CLEAR(state->format_error);
    Py_CLEAR(state->warning_hook);
    Py_CLEAR(state->step_hook);
    Py_CLEAR(state->timer_type);
    Py_CLEAR(state->run_stages_type);
    Py_CLEAR(state->bucket_hook_type);
    Py_CLEAR(state->bucket_times_type);
    Py_CLEAR(state->stage_type);
    Py_CLEAR(state->no_op_stage_type);
    Py_CLEAR(state->no_op_stage);
    mu_py_hook_events_free(state);
    Py_CLEAR(state->hook_event_type);
    Py_CLEAR(state->call_type);
    Py_CLEAR(state->calls);
    Py_CLEAR(state->key_iter);
    Py_CLEAR(state->key_microbatch);
    for (int i = 0; i < MU_PY_HOOK_FIELDS; i++) {
        Py_CLEAR(state->hook_event_names[i]);
    }
    Py_CLEAR(state->forward_passes_type);
    Py_CLEAR(state->digest_type);
    Py_CLEAR(state->sums_type);
    Py_CLEAR(state->tensor_diff_type);
    Py_CLEAR(state->tensor_stats_type);
    Py_CLEAR(state->nan_inf_count_type);
    Py_CLEAR(state->time_recorder_type);
    Py_CLEAR(state->timed_block_type);
    Py_CLEAR(state->recorder_stack);
    Py_CLEAR(state->timing_switch);
    Py_CLEAR(state->module_hook_type);
    mu_py_exchange_clear(&state->exchange);
    return 0;
}

static void release(void *module) {
    clear((PyObject *)module);
    mu_py_recorder_release(mu_state_of(module));
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, mu_py_errors_exec},
    {Py_mod_exec, mu_py_main_thread_exec},
    {Py_mod_exec, mu_py_recorder_exec},
    {Py_mod_exec, mu_py_events_exec},
    {Py_mod_exec, mu_py_control_exec},
    {Py_mod_exec, mu_py_timer_exec},
    {Py_mod_exec, mu_py_stage_exec},
    {Py_mod_exec, mu_py_no_op_exec},
    {Py_mod_exec, mu_py_cuda_exec},
    {Py_mod_exec, mu_py_gpu_kernels_exec},
    {Py_mod_exec, mu_py_gpu_events_exec},
    {Py_mod_exec, mu_py_journal_exec},
    {Py_mod_exec, mu_py_trace_exec},
    {Py_mod_exec, mu_py_stage_table_exec},
    {Py_mod_exec, mu_py_windows_exec},
    {Py_mod_exec, mu_py_stage_rows_exec},
    {Py_mod_exec, mu_py_durations_exec},
    {Py_mod_exec, mu_py_tensor_exec},
    {Py_mod_exec, mu_py_hook_event_exec},
    {Py_mod_exec, mu_py_calls_exec},
    {Py_mod_exec, mu_py_capture_exec},
    {Py_mod_exec, mu_py_forward_passes_exec},
    {Py_mod_exec, mu_py_torch_ops_exec},
    {Py_mod_exec, mu_py_tensor_hash_exec},
    {Py_mod_exec, mu_py_row_hashes_exec},
    {Py_mod_exec, mu_py_write_memory_exec},
    {Py_mod_exec, mu_py_tensor_sums_exec},
    {Py_mod_exec, mu_py_compare_exec},
    {Py_mod_exec, mu_py_md5_exec},
    {Py_mod_exec, mu_py_stats_exec},
    {Py_mod_exec, mu_py_timing_switch_exec},
    {Py_mod_exec, mu_py_time_recorder_exec},
    {Py_mod_exec, mu_py_timed_exec},
    {Py_mod_exec, mu_py_module_timer_exec},
    {Py_mod_exec, mu_py_packed_times_exec},
    {Py_mod_exec, mu_py_bucket_times_exec},
    {Py_mod_exec, mu_py_run_stages_exec},
    {Py_mod_exec, mu_py_stage_call_exec},
    {Py_mod_exec, mu_py_process_stacks_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

PyModuleDef mu_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "my_utils._core",
    .m_doc = "The C part of my_utils.",
    .m_size = sizeof(struct mu_state),
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

struct mu_state *mu_state_of_object(PyObject *object) {
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(object), &mu_module);
    return module == NULL ? NULL : mu_state_of(module);
}

PyMODINIT_FUNC PyInit__core(void) {
    return PyModuleDef_Init(&mu_module);
}
