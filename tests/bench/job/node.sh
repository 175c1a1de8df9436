# What the containers of floor.sh do first: install the keys that are mounted at /keys.
# sshd insists on files that only root may write, and a mounted folder belongs to the user who made it.
install -d -m 700 /root/.ssh
install -m 600 /keys/id_ed25519 /root/.ssh/id_ed25519
install -m 600 /keys/id_ed25519.pub /root/.ssh/authorized_keys
install -m 600 /keys/host_key /etc/hvdcloud/ssh_host_ed25519_key
