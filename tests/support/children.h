/* See children.c. */
#pragma once

typedef int (*main_function)(int, char **, char **);

/* Calls the program's `main`. Where its command starts others, they share what this process has loaded. */
int with_children(main_function program, int argc, char **argv, char **environment);
