#include <cstdio>
int main() { std::puts("ottava"); }
