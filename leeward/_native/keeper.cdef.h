struct lw_way {
	const struct lw_step *steps;
	uint32_t count;
	uint32_t once;
	const uint8_t *layers;
	int32_t *ends[6];
	const struct lw_range *pages;
	uint32_t page_count;
	const struct lw_beginning *beginning;
	const struct lw_range *hot;
	uint32_t hot_count;
	const struct lw_snapshot_parts *taken;
};

struct lw_born {
	int join_error;
	int affinity_error;
	uint32_t done;
	int64_t result;
	uint8_t hurried;
	uint8_t sound;
	uint8_t beside;
	uint8_t begun;
};

int lw_keep(int channel, const struct lw_runner *how, const struct lw_way *ways, struct lw_born *ret_born);
