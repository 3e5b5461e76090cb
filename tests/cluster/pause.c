/* Holds a Pod's namespaces: waits for its end, and takes care of orphans where it is the Pod's first process. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal) {
	(void)signal;
	_exit(0);
}

static void reap(int signal) {
	(void)signal;
	while (waitpid(-1, NULL, WNOHANG) > 0) {
	}
}

int main(void) {
	signal(SIGINT, leave);
	signal(SIGTERM, leave);
	signal(SIGCHLD, reap);
	for (;;) {
		pause();
	}
}
