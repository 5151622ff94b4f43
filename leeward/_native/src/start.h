/* A program that is started in namespaces of its own. See start.c. */
#ifndef LW_START_H
#define LW_START_H

#include <stdint.h>

struct lw_step;
struct lw_start;

struct lw_start *lw_start_new(void);
void lw_start_free(struct lw_start *start);
int lw_start(struct lw_start *start, uint64_t flags, const struct lw_step *steps, uint32_t count, int *ret_pidfd);
uint32_t lw_start_done(const struct lw_start *start, int64_t *ret_result);

#endif
