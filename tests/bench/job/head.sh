# head.sh HEAD WORKER, in the head's container: horovodrun across both as soon as the worker's sshd answers.
export LC_ALL=C

give_up=$((SECONDS + 60))
until { exec 3<>"/dev/tcp/$2/2222" && read -r -t 5 -u 3 banner; } 2>/dev/null; do
    [ "$SECONDS" -lt "$give_up" ] || { echo "waited 60 s for sshd on $2" >&2; exit 1; }
    sleep 0.01
done
exec 3>&-
horovodrun --gloo -np 2 -H "$1:1,$2:1" -p 2222 -i /root/.ssh/id_ed25519 --network-interfaces eth0 --disable-cache \
    python /job/allreduce.py
status=$?
exit "$status"
