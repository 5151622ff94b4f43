struct lw_scout {
	const struct lw_beginning *beginning;
	const struct lw_range *ranges;
	uint32_t count;
	int ends[6];
	int out;
};

int lw_scout(const struct lw_scout *how);
