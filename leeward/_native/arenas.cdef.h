struct lw_range {
	uint64_t start;
	uint64_t size;
};

bool lw_arenas_gather(size_t room);
bool lw_arenas_gather_huge(size_t room);
struct lw_range lw_arenas_gathered(void);
