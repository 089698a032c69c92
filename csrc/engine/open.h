/* Opening, moving and closing what a recorder writes to; adopting the journals of the dead. */
#ifndef MU_OPEN_H
#define MU_OPEN_H

struct mu_recorder;

/* In a forked child whose parent wrote files: opens files of the child's own, once. */
void mu_recorder_reopen_in_child(struct mu_recorder *recorder);

#endif
