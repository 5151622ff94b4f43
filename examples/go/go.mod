module leeward-run

go 1.17
