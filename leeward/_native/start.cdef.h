struct lw_start;

struct lw_start *lw_start_new(void);
void lw_start_free(struct lw_start *start);
int lw_start(struct lw_start *start, uint64_t flags, const struct lw_step *steps, uint32_t count, int *ret_pidfd);
uint32_t lw_start_done(const struct lw_start *start, int64_t *ret_result);
