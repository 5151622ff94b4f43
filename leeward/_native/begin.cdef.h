struct lw_beginning {
	const uint8_t *ready;
	uint32_t size;
	int birth;
	void *renew;
};
