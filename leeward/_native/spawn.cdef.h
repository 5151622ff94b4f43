struct lw_init;


struct lw_runner {
	uint64_t flags;
	int cgroup;
	const int *attach;
	uint32_t attach_count;
	int ruleset;
	const void *filter; 
	uint16_t filter_count;
};

int lw_clone(uint64_t flags, int cgroup, int *ret_pidfd);
struct lw_init *lw_init_new(void);
void lw_init_free(struct lw_init *init);
int lw_init_join_error(const struct lw_init *init);
int lw_init_status(const struct lw_init *init, int *ret_status);
int lw_spawn_runner(struct lw_init *init, const struct lw_runner *how, int *ret_pidfd);

void lw_before_fork(void);
void lw_after_fork_parent(void);
void lw_after_fork_child(void);

#define CLONE_NEWNS ...
#define CLONE_NEWCGROUP ...
#define CLONE_NEWUTS ...
#define CLONE_NEWIPC ...
#define CLONE_NEWUSER ...
#define CLONE_NEWPID ...
#define CLONE_NEWNET ...
