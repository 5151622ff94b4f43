int lw_heap_give_back(size_t threshold);
