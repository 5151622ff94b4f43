struct lw_born {
	int job;
	int reply;
	int out;
	int err;
	int birth;
	int join_error;
	int cpu;
};

int lw_keep(int channel, const struct lw_runner *how, struct lw_born *ret_born);
