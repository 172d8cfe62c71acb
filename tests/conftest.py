"""What holds for all tests."""

import signal

# Started in the background by a script, this process inherits an ignored SIGINT, and so would every program
# that a test starts and interrupts as a person does with Ctrl-C. What this process handles is at its default
# again in those that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
