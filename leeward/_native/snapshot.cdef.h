struct lw_snapshot_part {
	struct lw_range pages;
	int protection;
};

struct lw_snapshot_parts {
	const struct lw_snapshot_part *parts;
	uint32_t count;
	int map;
};

uint64_t lw_thread_storage(void);
int lw_snapshot_take(int file, const struct lw_snapshot_part *parts, uint32_t count, bool huge);
void lw_snapshot_drop(const struct lw_snapshot_parts *taken);
