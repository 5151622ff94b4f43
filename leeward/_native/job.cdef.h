struct lw_job {
	int job, reply;
	int lone;
	const char *workspace;
	const uint8_t *nothing;
	uint32_t size;
	bool last;
};

int lw_job_lay(const struct lw_job *given);
int64_t lw_job_take(void);
int64_t lw_job_size(void);
const char *lw_job_taken(void);
void lw_job_leave(void);
